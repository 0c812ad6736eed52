"""The corpus helpers find every difference that they promise to find, and name it."""

import shutil

import pytest

from tests.corpus import (
    assert_copied_verbatim,
    assert_same_log,
    assert_same_snapshots,
    cleaning_cases,
    load_case,
    load_loading_case,
    loading_cases,
)
from tests.twin.batches import encode_batch, sign_batch
from tests.twin.filtering import rebuild_batch
from tests.twin.segments import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, list_segments


@pytest.fixture
def copy_of(tmp_path):
    """(a copy to change, the original) of what Kafka left of a case."""

    def copy(name):
        after = load_case(name, tmp_path).rounds[0].after
        shutil.copytree(after, tmp_path / "copy")
        return tmp_path / "copy", after

    return copy


def first_with(directory, suffix):
    """Return the first segment whose file with `suffix` holds something."""
    return next(segment for segment in list_segments(directory) if segment.read(suffix))


def replace_batch(directory, number, change):
    """Put `change(batch)` in the place of a batch of the first segment that has one."""
    segment = first_with(directory, LOG)
    batches = [batch for _position, batch in segment.batches()]
    content = [change(batch) if index == number else batch.data for index, batch in enumerate(batches)]
    segment.path(LOG).write_bytes(b"".join(content))
    return batches[number]


@pytest.mark.parametrize(("name", "compressed"), [("plain", False), ("lz4", True), ("everything", True)])
def test_a_log_is_the_same_as_itself(name, compressed, copy_of):
    copy, original = copy_of(name)
    assert_same_log(copy, original, compressed)
    assert_same_snapshots(copy, original)


def test_a_missing_segment_is_seen(copy_of):
    copy, original = copy_of("plain")
    list_segments(copy)[1].path(LOG).unlink()
    with pytest.raises(AssertionError, match=r"segment base offsets \[0, 894, .*expected \[0, 448"):
        assert_same_log(copy, original, compressed=False)


def test_a_changed_header_field_is_named_with_its_batch(copy_of):
    copy, original = copy_of("lz4")
    batch = replace_batch(copy, 0, lambda b: sign_batch(b.data[:12] + b"\0\0\0\x09" + b.data[16:]))
    with pytest.raises(
        AssertionError, match=f"segment [0-9]+ batch {batch.base_offset}: leader_epoch is 9, expected 0"
    ):
        assert_same_log(copy, original, compressed=True)


def test_a_changed_record_is_named_with_its_offset(copy_of):
    copy, original = copy_of("plain")
    batch = replace_batch(
        copy,
        1,
        lambda b: encode_batch(
            [type(record)(record.offset, record.timestamp, record.key, b"other") for record in b.records()],
            base_offset=b.base_offset,
            last_offset=b.last_offset,
            leader_epoch=b.leader_epoch,
        ),
    )
    offset = batch.records()[0].offset
    with pytest.raises(AssertionError, match=f"batch {batch.base_offset} record {offset}: value is b'other'"):
        assert_same_log(copy, original, compressed=False)


@pytest.mark.parametrize(("number", "text"), [(0, "base_offset is"), (-1, "batches missing, with last offsets")])
def test_a_missing_batch_is_seen(number, text, copy_of):
    copy, original = copy_of("plain")
    replace_batch(copy, number % len(first_with(copy, LOG).batches()), lambda b: b"")
    with pytest.raises(AssertionError, match=text):
        assert_same_log(copy, original, compressed=False)


def test_a_surplus_batch_and_trailing_bytes_are_seen(copy_of):
    copy, original = copy_of("plain")
    segment = first_with(copy, LOG)
    content = segment.read(LOG)
    segment.path(LOG).write_bytes(content + segment.batches()[-1][1].data)
    with pytest.raises(AssertionError, match="1 batches too many"):
        assert_same_log(copy, original, compressed=False)
    segment.path(LOG).write_bytes(content + b"\0" * 5)
    with pytest.raises(AssertionError, match="5 bytes after the last batch"):
        assert_same_log(copy, original, compressed=False)


def test_a_wrong_checksum_of_a_compressed_batch_is_seen(copy_of):
    copy, original = copy_of("lz4")
    replace_batch(copy, 0, lambda b: b.data[:17] + b"\0\0\0\0" + b.data[21:])
    with pytest.raises(AssertionError, match="crc is wrong"):
        assert_same_log(copy, original, compressed=True)


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
def test_indexes_of_uncompressed_logs_must_be_equal(suffix, copy_of):
    copy, original = copy_of("dense-index")
    segment = list_segments(copy)[0]
    content = segment.read(suffix)
    segment.path(suffix).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(AssertionError, match=f"segment 0 {suffix} entry [0-9]+: .*, expected"):
        assert_same_log(copy, original, compressed=False)
    segment.path(suffix).write_bytes(content + b"\0" * 4)
    with pytest.raises(AssertionError, match=f"{len(content) + 4} bytes, expected {len(content)}"):
        assert_same_log(copy, original, compressed=False)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(OFFSET_INDEX, "no batch begins at position|ends at"), (TIME_INDEX, "the log says offset")],
)
def test_indexes_of_compressed_logs_must_be_valid(suffix, text, copy_of):
    copy, original = copy_of("everything")
    segment = first_with(copy, OFFSET_INDEX)
    content = segment.read(suffix)
    segment.path(suffix).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(AssertionError, match=text):
        assert_same_log(copy, original, compressed=True)


def test_a_sparser_offset_index_of_a_compressed_log_is_as_good(copy_of):
    copy, original = copy_of("everything")
    for segment in list_segments(copy):
        segment.path(OFFSET_INDEX).write_bytes(b"")
    assert_same_log(copy, original, compressed=True)


def test_a_time_index_without_its_last_entry_is_seen(copy_of):
    copy, original = copy_of("everything")
    segment = first_with(copy, TIME_INDEX)
    segment.path(TIME_INDEX).write_bytes(segment.read(TIME_INDEX)[:-12])
    with pytest.raises(AssertionError, match="last entry"):
        assert_same_log(copy, original, compressed=True)


def test_transaction_indexes_must_be_equal_and_their_files_there(copy_of):
    copy, original = copy_of("transactions")
    segment = first_with(copy, TRANSACTION_INDEX)
    content = segment.read(TRANSACTION_INDEX)
    segment.path(TRANSACTION_INDEX).write_bytes(content[:-34])
    with pytest.raises(AssertionError, match=f"segment {segment.base_offset} .txnindex"):
        assert_same_log(copy, original, compressed=False)
    segment.path(TRANSACTION_INDEX).unlink()
    with pytest.raises(AssertionError, match="is missing"):
        assert_same_log(copy, original, compressed=False)


def test_a_missing_snapshot_is_seen(copy_of):
    copy, original = copy_of("plain")
    list_segments(copy)[1].path(SNAPSHOT).unlink()
    with pytest.raises(AssertionError, match="snapshots at"):
        assert_same_snapshots(copy, original)


def test_a_batch_rebuilt_without_need_is_seen(tmp_path):
    round_ = load_case("transactions-codecs", tmp_path).rounds[1]
    shutil.copytree(round_.after, tmp_path / "copy")
    source = {batch.data for segment in list_segments(round_.before) for _position, batch in segment.batches()}
    rebuilt = 0
    for segment in list_segments(tmp_path / "copy"):
        content = []
        for _position, batch in segment.batches():
            data = batch.data
            if batch.data in source and batch.count:
                data = rebuild_batch(batch, batch.records(), batch.delete_horizon_ms)
            rebuilt += data != batch.data
            content.append(data)
        segment.path(LOG).write_bytes(b"".join(content))
    assert rebuilt
    assert_copied_verbatim(round_.after, round_.after, round_.before)
    with pytest.raises(AssertionError, match="was rebuilt, though it loses nothing"):
        assert_copied_verbatim(tmp_path / "copy", round_.after, round_.before)


def test_every_case_unpacks(tmp_path):
    cases = [load_case(name, tmp_path / "cleaning") for name in cleaning_cases(magic2_only=False)]
    loaded = [load_loading_case(name, tmp_path / "loading") for name in loading_cases()]
    assert (len(cases), len(loaded)) == (29, 23)
    assert all(round_.before.is_dir() and round_.after.is_dir() for case in cases for round_ in case.rounds)
    assert all(case.before.is_dir() and case.after.is_dir() for case in loaded)
    assert {case.name for case in cases if case.compressed} == {
        "everything",
        "gzip",
        "legacy-v0-codecs",
        "legacy-v1-codecs",
        "log-append-time",
        "lz4",
        "mixed-codecs",
        "snappy",
        "transactions-codecs",
        "zstd",
    }
