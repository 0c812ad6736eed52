"""Readers of logs and of small files, on directories that were changed at random.

For any bytes the answer is a result or a SedimentError.  SEDIMENT_FUZZ_LOGS is the number of directories.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log, scan_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.corrupt_regions import find_corrupt_regions
from sediment.compaction.estimate import collect_sample
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import swap_from_json, swap_to_json
from sediment.engine.directory.output import check_output_path
from sediment.engine.directory.spool import announce, check_announced
from sediment.engine.directory.uncleanable import read_uncleanable, uncleanable_after, update_uncleanable
from sediment.engine.live.log.partition_log import Isolation, PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.jobs.delta_lake.refresh_plan import PartitionProgress, RefreshProgress, parse_progress, progress_json
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.checkpoints import parse_partition_metadata
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.meta_properties import parse_meta_properties
from sediment.segment_io.format.names import METADATA_PARTITION, UNCLEANABLE_FILE, Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    CONSUMER_OFFSETS,
    COORDINATOR_TOPICS,
    decode_control_record,
    decode_coordinator_record,
)
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record
from sediment.segment_io.manifest import MANIFEST_FILE
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_checkpoints
from sediment.segment_io.partition.clean_shutdown_file import parse_clean_shutdown
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.read_committed import committed_range
from sediment.segment_io.partition.sample import sampled_batches
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.mapped_index import MappedOffsetIndex, MappedTimeIndex
from sediment.segment_io.segment.open_transaction_index import OpenTransactionIndex
from sediment.segment_io.stores import Store
from sediment.segment_io.tables.log_marks import LogMark
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.schema import CLUSTER_TABLES, FAIL, ROWS, SKIP, TABLES, TableRequest
from tests.archives import unpack
from tests.fuzz.corrupted import NOW_MS, PARTITION, changed_batch, corrupted_log, flipped
from tests.logs import LogShape, write_random_log
from tests.twin.segments import file_batches

LOGS = int(os.environ.get("SEDIMENT_FUZZ_LOGS", "300"))
EVERY_RUN = 25
DATA = Path(__file__).parents[1] / "data"
ASKED = (0, 1, 40, 1000, 2**31 - 1, INT64_MAX, -1)

answered = contextlib.suppress(SedimentError)


class AtOnce:
    """A scheduler of a log that runs nothing in the background."""

    def schedule_once(self, name, task, *, delay_ms=0):
        task()


def seeds(count):
    """Seeds of which the first ones are for every run of the tests."""
    return [pytest.param(n, marks=[] if n < EVERY_RUN else [pytest.mark.fuzz]) for n in range(count)]


# ----------------------------------------------------------------------------------------------------------- whole logs
def read_every_table(directory):
    """Read every table; a directory is also that of groups and of a metadata log, for the tables of the cluster."""
    shutil.copytree(directory, directory.parent / str(METADATA_PARTITION))
    sources = [Source(PARTITION, directory), Source(TopicPartition(CONSUMER_OFFSETS, 0), directory)]
    for what in sorted(TABLES):
        for on_corruption in (FAIL, SKIP, ROWS):
            for isolation in ("read_uncommitted", "read_committed"):
                request = TableRequest(what=what, on_corruption=on_corruption, isolation=isolation)
                with answered:
                    for task in plan_table(request, sources if what in CLUSTER_TABLES else sources[:1], Fs()):
                        for batch in read_rows(request, task, Fs()):
                            batch.validate(full=True)


def clean_what_can_be_read(directory):
    fs, config = Fs(), CompactionConfig(cleanup_policy=("compact",), delete_retention_ms=1000)
    view = open_view(
        list_log(PARTITION, directory, fs),
        PartitionCheckpoints(),
        fs,
        now_ms=NOW_MS,
        producer_id_expiration_ms=INT64_MAX,
    )
    collect_sample(sampled_batches(directory, view.listing.segments, fs, budget_bytes=4000))
    cleanable = cleanable_range(view, config, now_ms=NOW_MS, force=True)
    if cleanable.blocked_by is None:
        plan = plan_cleaning(view, cleanable, config, now_ms=NOW_MS)
        find_corrupt_regions(plan, fs, lambda _size: None)
        with answered:
            scan_log(plan, fs, only_if_needed=False)
        return clean_log(plan, fs, Attempt("r", "0"), CleaningMode(keep_unreadable=True))
    return None


def serve(directory):
    log = PartitionLog.open(
        PARTITION,
        directory,
        LogConfig(),
        PartitionCheckpoints(clean_shutdown=True),
        Fs(),
        clock=lambda: NOW_MS,
        scheduler=AtOnce(),
    )
    try:
        for offset in {*ASKED, *log.base_offsets, log.log_end_offset - 1}:
            for isolation in Isolation:
                with answered:
                    log.read(offset, 1000, isolation, min_one_message=True).read()
            with answered:
                log.lookup_timestamp(NOW_MS - offset)
            with answered:
                log.end_offset_for_epoch(offset)
    finally:
        with answered:
            log.close()


def look_up(directory):
    for path in directory.glob("*.log"):
        base = int(path.stem)
        with answered:
            offsets = MappedOffsetIndex(path.with_suffix(".index"), base, Fs(), max_bytes=1 << 20)
            for target in ASKED:
                offsets.lookup(target)
                offsets.fetch_upper_bound(target & 0x7FFFFFFF)
        with answered:
            times = MappedTimeIndex(path.with_suffix(".timeindex"), base, Fs(), max_bytes=1 << 20)
            for target in (*ASKED, NOW_MS):
                times.lookup(target)
        with answered:
            OpenTransactionIndex(path.with_suffix(".txnindex"), Fs()).index()


@pytest.mark.parametrize("seed", seeds(LOGS))
def test_a_log_of_changed_files_is_read_sampled_cleaned_of_what_is_readable_and_served_or_refused(tmp_path, seed):
    directory = corrupted_log(tmp_path / "t-0", seed + 100_000)
    kept = {path.name: path.read_bytes() for path in directory.iterdir()}
    source = Source(PARTITION, directory)
    read_every_table(directory)
    with answered:
        committed_range(source, PartitionCheckpoints(), Fs())
    with answered:
        swap = clean_what_can_be_read(directory)
        assert swap is None or swap_from_json(swap_to_json(swap)) == swap
    assert {name: (directory / name).read_bytes() for name in kept} == kept
    look_up(shutil.copytree(directory, tmp_path / "copy"))
    with answered:
        serve(directory)


# ------------------------------------------------------------------------------------------------------- small files
def test_every_small_file_that_is_read_back_may_hold_any_bytes(tmp_path):
    write_random_log(tmp_path / "t-0", 5, LogShape(transactional=0.0))
    swap = clean_what_can_be_read(tmp_path / "t-0")
    log_dir, folder, fs = tmp_path / "logs", tmp_path / "folder", Fs()
    log_dir.mkdir()
    announce(folder, [log_dir], fs)
    (announced,) = folder.iterdir()
    mark = uncleanable_after(
        SedimentError("x"), list_log(PARTITION, tmp_path / "t-0", fs), reason_code="c", reason="r", since_ms=5
    )
    (log_dir / "t-0").mkdir()
    update_uncleanable(log_dir, fs, add=[mark])
    uncleanable = (log_dir / UNCLEANABLE_FILE).read_bytes()
    progress = progress_json(
        RefreshProgress("latest", "r", 1, {"t-0": PartitionProgress(5, 0, LogMark("A"), 1, 9)})
    ).encode()
    settings = b"log.dirs=/x\\:y\nlog.cleaner.threads = 3\\\n 4\nnum.x: \\u0041\n!c\n#d\n"

    def read_checkpoint_files(content):
        for name in ("cleaner-offset-checkpoint", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
            (log_dir / name).write_bytes(content)
        read_checkpoints(log_dir, fs)

    def read_marks(content):
        (log_dir / UNCLEANABLE_FILE).write_bytes(content)
        for found in read_uncleanable(log_dir, fs).values():
            found.holds_for(list_log(PARTITION, tmp_path / "t-0", fs))
            update_uncleanable(log_dir, fs, add=[replace(found, reason="other")])

    def read_announced(content):
        announced.write_bytes(content)
        check_announced(folder, [log_dir], fs)

    def read_manifest(content):
        (tmp_path / "output").mkdir(exist_ok=True)
        (tmp_path / "output" / MANIFEST_FILE).write_bytes(content)
        check_output_path(Store(str(tmp_path / "output")), [])

    def read_config(content):
        (tmp_path / "server.properties").write_bytes(content)
        Settings.load(tmp_path / "server.properties", ())

    readers = [
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n", parse_partition_metadata),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", parse_meta_properties),
        (b'{"version":0,"brokerEpoch":5}', parse_clean_shutdown),
        (b"0\n1\nt 0 5\n", read_checkpoint_files),
        (swap_to_json(swap).encode(), swap_from_json),
        (uncleanable, read_marks),
        (announced.read_bytes(), read_announced),
        (progress, lambda content: parse_progress(content.decode(errors="replace"))),
        (settings, read_config),
        (b'{"run_id": "r", "files": []}', read_manifest),
    ]
    chance = random.Random(7)
    strange = [b"", b"null", b"[]", b"{}", b"[" * 100_000, b"9" * 5000, b'"\\ud800"', b"\xff\xfe", b"1e999", b"NaN"]
    for content, read in readers:
        for changed in (*strange, *(flipped(content, chance) for _ in range(300))):
            with answered:
                read(changed)


# ----------------------------------------------------------------------------------------- coordinators and controllers
def test_changed_records_of_coordinators_are_decoded_or_shown_as_bytes():
    lines = (DATA / "kafka-4.2.0-coordinator-records.jsonl").read_text().splitlines()
    chance = random.Random(11)
    for line in chance.sample(lines, min(len(lines), 400)):
        found = json.loads(line)
        key, value = (None if found[name] is None else bytes.fromhex(found[name]) for name in ("key", "value"))
        for _ in range(12):
            for topic in COORDINATOR_TOPICS:
                decode_coordinator_record(topic, flipped(key or b"", chance), value and flipped(value, chance))
                decode_coordinator_record(topic, key, value and flipped(value, chance))
            decode_control_record(flipped(key or b"", chance), value and flipped(value, chance))


@pytest.fixture(scope="module")
def broker_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with tarfile.open(DATA / "kraft" / "log-dir.tar.gz") as archive:
        unpack(archive, folder / "broker")
    return folder / "broker"


@pytest.mark.parametrize("seed", seeds(LOGS))
def test_a_changed_metadata_log_says_what_it_holds_or_is_refused(broker_dir, tmp_path, seed):
    shutil.copytree(broker_dir / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    chance = random.Random(seed)
    paths = sorted((tmp_path / "__cluster_metadata-0").iterdir())
    for path in chance.sample(paths, min(len(paths), chance.randint(1, 2))):
        content = path.read_bytes()
        batches = [batch.data for _, batch in file_batches(content) if len(batch.data) < 4000]
        if path.suffix in (".log", ".checkpoint") and batches and chance.random() < 0.8:
            at = chance.randrange(len(batches))
            new = changed_batch(batches, seed, chance.randrange(1 << 30))
            path.write_bytes(content.replace(batches[at], new, 1))
        else:
            path.write_bytes(flipped(content, chance))
    with answered:
        found = read_cluster_metadata(tmp_path, Fs())
        assert found is None or found.end_offset >= 0


def test_changed_metadata_records_are_decoded_or_refused(broker_dir):
    values = {
        record.value
        for path in (broker_dir / "__cluster_metadata-0").glob("*.log")
        for _, batch in file_batches(path.read_bytes())
        if not batch.is_control
        for record in batch.records()
    }
    chance = random.Random(3)
    for value in sorted(value for value in values if value):
        for _ in range(20):
            with answered:
                decode_metadata_record(flipped(value, chance))
    assert np.array(values).size
