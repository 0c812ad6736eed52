"""Suppression lists: their file, their secret, and the records that they find."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from pathlib import Path

import pytest

from sediment.compaction.rewrite.suppression import (
    SuppressedKeys,
    SuppressionList,
    find_suppressed,
    format_suppression_list,
    parse_suppression_list,
)
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import Source
from tests.logs import LogShape, write_random_log
from tests.rewrites import PARTITION
from tests.twin.segments import list_segments

SECRET = b"a secret of the operator"
KEYS = [b"a", b"", b"\xff\x00"]


def make_list() -> SuppressionList:
    return SuppressionList(SECRET, {}).with_keys(["people", "visits"], KEYS).with_keys(["visits"], [b"b"])


def test_a_list_has_the_hmacs_of_the_keys_by_topic_and_no_key():
    document = json.loads(format_suppression_list(make_list()))
    expected = sorted(hmac.new(SECRET, key, hashlib.sha256).hexdigest() for key in KEYS)
    assert document["topics"]["people"] == expected
    assert len(document["topics"]["visits"]) == 4
    assert (document["kind"], document["schema"]) == ("suppression-list", 1)


def test_a_list_is_read_back():
    content = format_suppression_list(make_list())
    read = parse_suppression_list(content, SECRET, path="list")
    assert read == make_list()
    people, visits = read.of_topic("people"), read.of_topic("visits")
    assert [key in people for key in (*KEYS, b"b", None)] == [True, True, True, False, False]
    assert b"b" in visits
    assert read.of_topic("other") is None


def test_another_secret_is_refused():
    with pytest.raises(UsageError, match="another secret"):
        parse_suppression_list(format_suppression_list(make_list()), b"another secret of theirs", path="list")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "evidence"},
        {"schema": 2},
        {"algorithm": "MD5"},
        {"topics": {"people": ["00"]}},
        {"topics": {"people": ["A" * 64]}},
        {"topics": {"people": 3}},
        {"topics": None},
        {"secret_check": None},
    ],
)
def test_a_file_that_is_not_a_list_is_refused(change):
    document = json.loads(format_suppression_list(make_list())) | change
    for content in (json.dumps(document).encode(), b"", b"[]", b"\xff"):
        with pytest.raises(UsageError, match="not a suppression list"):
            parse_suppression_list(content, SECRET, path="list")


def test_no_representation_shows_the_secret():
    for each in (make_list(), make_list().of_topic("people")):
        assert "secret" not in repr(each)
    assert b"a" in pickle.loads(pickle.dumps(make_list().of_topic("people")))


@pytest.mark.parametrize(
    "shape",
    [
        LogShape(codecs=(0, 1, 2, 3, 4), most_records=40, segment_bytes=6000, null_keys=0.1),
        LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
    ],
)
def test_records_with_a_value_and_a_suppressed_key_are_found(shape: LogShape, tmp_path: Path):
    directory = tmp_path / str(PARTITION)
    write_random_log(directory, 1, shape)
    records = [
        (record.offset, record.key, record.value)
        for segment in list_segments(directory)
        for _, batch in segment.batches()
        if not batch.is_control
        for record in batch.records()
    ]
    wanted = {key for _, key, _ in records if key is not None and sum(key) % 3 == 0}
    assert wanted
    keys = SuppressionList(SECRET, {}).with_keys([PARTITION.topic], wanted).of_topic(PARTITION.topic)
    assert keys is not None
    expected = [offset for offset, key, value in records if key in wanted and value is not None]
    assert find_suppressed(Source(PARTITION, directory), keys, Fs()).tolist() == expected


def test_a_corrupt_log_is_not_passed_over(tmp_path: Path):
    directory = tmp_path / str(PARTITION)
    write_random_log(directory, 2, LogShape())
    log = min(directory.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptBatchError):
        find_suppressed(Source(PARTITION, directory), SuppressedKeys(SECRET, frozenset()), Fs())
