"""Topics of log directories: bare folders, directories of brokers, replicas, other names, and directories in use."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import DirectoryInUseError, NotALogDirectoryError, UsageError
from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.read_only.catalog import Catalog, CatalogOptions, Renaming, open_catalog, parse_renaming
from tests.corpus import load_loading_case
from tests.server.read_only.log_dirs import (
    fingerprint,
    kraft_dir,
    write_checkpoint,
    write_epochs,
    write_meta,
    write_partition,
    write_topic_id,
)
from tests.server.read_only.logs import content

READ = {"isolation": Isolation.HIGH_WATERMARK, "min_one": True}


def catalog_of(
    *directories: Path, to_log_end: bool = False, renamings: tuple[str, ...] = (), partitions: tuple[str, ...] = ()
) -> Catalog:
    options = CatalogOptions(to_log_end, tuple(parse_renaming(text) for text in renamings), partitions)
    return open_catalog(directories, options, Fs())


def names(catalog: Catalog) -> dict[str, list[int]]:
    return {topic.name: list(topic.partitions) for topic in catalog.topics()}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


# ------------------------------------------------------------------------------------------------------------- topics
def test_bare_folders_are_topics_with_ids_that_are_the_same_at_every_start(log_dir: Path) -> None:
    for name in ("b-0", "a.x-1", "a.x-0", "__consumer_offsets-3"):
        write_partition(log_dir, name, 2)
    for name in ("lost+found", "a.x-0.0123456789abcdef0123456789abcdef-delete", "b-1.0f-stray", "c-0.0f-future"):
        (log_dir / name).mkdir()
    first, second = catalog_of(log_dir), catalog_of(log_dir)
    assert names(first) == {"__consumer_offsets": [3], "a.x": [0, 1], "b": [0]}
    ids = [topic.id for topic in first.topics()]
    assert ids == [topic.id for topic in second.topics()]
    assert len(set(ids)) == 3
    for topic in first.topics():
        assert first.topic_by_id(topic.id) is first.topic(topic.name) is topic
        assert topic.is_internal == (topic.name == "__consumer_offsets")
    assert first.cluster_id == second.cluster_id
    assert len(parse_uuid(first.cluster_id)) == 16
    assert first.partition("b", 0).high_watermark == 2
    assert first.partition("b", 1) is None
    assert first.partition("x", 0) is None
    assert first.topic("nothing") is None
    assert first.topic_by_id(uuid.uuid4()) is None


def test_a_path_may_name_one_partition_and_keeps_its_checkpoints(log_dir: Path) -> None:
    for name in ("t-0", "t-1"):
        write_partition(log_dir, name, 5)
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": 4, "t-1": 3})
    catalog = catalog_of(log_dir / "t-1")
    assert names(catalog) == {"t": [1]}
    assert catalog.partition("t", 1).high_watermark == 3
    assert names(catalog_of(log_dir / "t-1", log_dir)) == {"t": [0, 1]}


def test_high_watermarks_are_those_of_the_checkpoint_unless_the_log_end_is_asked_for(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t-0", "t-1", "t-2"):
        write_partition(log_dir, name, 5)
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": 3, "t-1": 9})
    write_checkpoint(log_dir / "log-start-offset-checkpoint", {"t-0": 2})
    catalog = catalog_of(log_dir)
    assert [catalog.partition("t", n).high_watermark for n in range(3)] == [3, 5, 0]
    assert catalog.partition("t", 0).log_start_offset == 2
    assert "t-2" in caplog.text
    assert "--to-log-end" in caplog.text
    whole = catalog_of(log_dir, to_log_end=True)
    assert [whole.partition("t", n).high_watermark for n in range(3)] == [5, 5, 5]


def test_ids_configs_and_features_come_from_the_metadata_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_dir = kraft_dir(tmp_path / "broker")
    catalog = catalog_of(log_dir)
    assert "compacted" in names(catalog)
    assert catalog.metadata is not None
    for topic in catalog.topics():
        known = catalog.metadata.topic_ids.get(topic.name)
        assert known is None or topic.id.bytes == parse_uuid(known)
    assert catalog.topic("compacted").configs["cleanup.policy"] == "compact"
    assert catalog.metadata.features["metadata.version"] > 0
    assert catalog.node_id == 7
    assert catalog.metadata.partitions["compacted"] == {0, 1}
    shutil.rmtree(log_dir / "compacted-0")
    assert names(catalog_of(log_dir))["compacted"] == [1]
    assert "only 1 of its 2 partitions" in caplog.text


def test_an_incomplete_topic_has_all_numbers_and_the_start_says_so(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t-1", "t-4", "u-0"):
        write_partition(log_dir, name, 1)
    catalog = catalog_of(log_dir)
    assert names(catalog) == {"t": [1, 4], "u": [0]}
    assert catalog.topic("t").missing == dict.fromkeys([0, 2, 3], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert catalog.topic("u").missing == {}
    assert "only 2 of its 5 partitions" in caplog.text
    assert "0, 2, 3" in caplog.text


def test_partitions_that_are_not_selected_are_listed_without_a_leader(log_dir: Path) -> None:
    for name in ("t-0", "t-1", "t-2", "u-0"):
        write_partition(log_dir, name, 1)
    found = catalog_of(log_dir, partitions=("t-1",)).topics()
    assert [(topic.name, list(topic.partitions)) for topic in found] == [("t", [1])]
    assert found[0].missing == dict.fromkeys([0, 2], ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_the_metadata_log_states_the_number_of_partitions(tmp_path: Path) -> None:
    log_dir = kraft_dir(tmp_path / "broker")
    shutil.rmtree(log_dir / "compacted-1")
    (topic,) = (each for each in catalog_of(log_dir).topics() if each.name == "compacted")
    assert (list(topic.partitions), list(topic.missing)) == ([0], [1])


def test_the_name_of_a_folder_cannot_make_the_server_list_millions_of_partitions(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("backup-20240101", "t-2147483647", "t-0", "u-1"):
        write_partition(log_dir, name, 1)
    found = {topic.name: (list(topic.partitions), list(topic.missing)) for topic in catalog_of(log_dir).topics()}
    assert found == {"backup": ([20240101], []), "t": ([0, 2147483647], []), "u": ([1], [0])}
    assert "partition 20240101 implies 20240101 partitions that are not in the directories" in caplog.text


def test_ids_come_from_partition_metadata_without_a_metadata_log(log_dir: Path) -> None:
    write_topic_id(write_partition(log_dir, "t-0", 1), 7)
    write_partition(log_dir, "t-1", 1)
    assert catalog_of(log_dir).topic("t").id == uuid.UUID(bytes=bytes([7]) * 16)


def test_corrupt_files_beside_the_segments_are_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = kraft_dir(tmp_path / "broker")
    write_partition(log_dir, "kept-0", 3)
    for name in ("replication-offset-checkpoint", "kept-0/partition.metadata"):
        (log_dir / name).write_bytes(b"\xff\xff nonsense")
    (log_dir / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"x" * 500)
    for path in (log_dir / "__cluster_metadata-0").glob("*.checkpoint"):
        path.write_bytes(b"y" * 500)
    catalog = catalog_of(log_dir)
    assert catalog.partition("kept", 0).high_watermark == 3
    assert caplog.text.count("left out") == 3


@pytest.mark.parametrize(
    ("malformed", "log_start", "high_watermark"),
    [
        ("recovery-point-offset-checkpoint", 2, 4),
        ("cleaner-offset-checkpoint", 2, 4),
        ("log-start-offset-checkpoint", 0, 4),
        ("replication-offset-checkpoint", 2, 5),
    ],
)
def test_a_malformed_checkpoint_is_left_out_and_named_and_the_others_count(
    malformed: str, log_start: int, high_watermark: int, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_partition(log_dir, "t-0", 5)
    write_checkpoint(log_dir / "log-start-offset-checkpoint", {"t-0": 2})
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": 4})
    (log_dir / malformed).write_bytes(b"0\n1\nnonsense\n")
    log = catalog_of(log_dir).partition("t", 0)
    assert (log.log_start_offset, log.high_watermark) == (log_start, high_watermark)
    [warning] = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert str(log_dir / malformed) in warning


# ------------------------------------------------------------------------------------------------------------ replicas
@pytest.fixture
def three_brokers(tmp_path: Path) -> list[Path]:
    """Directories of three brokers, with replicas of t-0 and t-1 that differ as those of running brokers do."""
    found = []
    for node, (epoch, batches, high_watermark) in enumerate([(3, 8, 5), (4, 6, 4), (4, 7, 6)]):
        directory = tmp_path / f"broker-{node}"
        directory.mkdir()
        write_meta(directory, node_id=node)
        write_partition(directory, "t-0", batches, epoch=epoch)
        write_epochs(directory / "t-0", (1, 0), (epoch, 5))
        write_topic_id(directory / "t-0", 9)
        write_checkpoint(directory / "replication-offset-checkpoint", {"t-0": high_watermark, "only-0": 2})
        found.append(directory)
    write_partition(found[1], "only-0", 2)
    write_partition(found[2], "t-1", 1)
    return found


def test_of_replicas_that_of_the_highest_leader_epoch_then_log_end_is_served(three_brokers: list[Path]) -> None:
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        catalog = catalog_of(*(three_brokers[number] for number in order))
        assert names(catalog) == {"only": [0], "t": [0, 1]}
        log = catalog.partition("t", 0)
        assert log.directory == three_brokers[2] / "t-0"
        assert (log.leader_epoch, log.log_end_offset, log.high_watermark) == (4, 7, 6)
        assert catalog.node_id == 0
    without = catalog_of(*three_brokers[:2]).partition("t", 0)
    assert (without.directory, without.log_end_offset, without.high_watermark) == (three_brokers[1] / "t-0", 6, 5)


def test_a_replica_states_no_more_than_the_served_log_holds(three_brokers: list[Path]) -> None:
    write_checkpoint(three_brokers[0] / "replication-offset-checkpoint", {"t-0": 8})
    assert catalog_of(*three_brokers).partition("t", 0).high_watermark == 7


def test_directories_of_two_clusters_are_refused(three_brokers: list[Path]) -> None:
    write_meta(three_brokers[1], cluster_id="another-cluster-000000")
    with pytest.raises(UsageError, match="another-cluster"):
        catalog_of(*three_brokers)


def test_replicas_of_two_topics_of_one_name_are_refused_and_served_by_other_names(three_brokers: list[Path]) -> None:
    write_topic_id(three_brokers[1] / "t-0", 8)
    with pytest.raises(UsageError, match="--as NEW=DIR:t"):
        catalog_of(*three_brokers)
    catalog = catalog_of(*three_brokers, renamings=(f"other={three_brokers[1]}:t",))
    assert names(catalog) == {"only": [0], "other": [0], "t": [0, 1]}


# --------------------------------------------------------------------------------------------------------- other names
def test_before_and_after_are_read_side_by_side(tmp_path: Path) -> None:
    for name, batches in (("before", 5), ("after", 2)):
        write_partition(tmp_path / name, "t-0", batches)
    before, after = tmp_path / "before", tmp_path / "after"
    catalog = catalog_of(before, after, renamings=(f"t-before={before}:t", f"t-after={after}:t"))
    assert names(catalog) == {"t-after": [0], "t-before": [0]}
    assert [catalog.partition(name, 0).log_end_offset for name in ("t-before", "t-after")] == [5, 2]
    assert len({topic.id for topic in catalog.topics()}) == 2
    one = catalog_of(before, after, renamings=(f"old={before}:t",))
    assert [one.partition(name, 0).log_end_offset for name in ("old", "t")] == [5, 2]


def test_a_topic_is_served_under_another_name_with_another_id(log_dir: Path) -> None:
    write_topic_id(write_partition(log_dir, "t-0", 2), 3)
    catalog = catalog_of(log_dir, renamings=("new.name=t",))
    assert names(catalog) == {"new.name": [0]}
    assert catalog.topic("new.name").id != catalog_of(log_dir).topic("t").id
    assert content(catalog.partition("new.name", 0).read(0, 1000, **READ))
    assert names(catalog_of(log_dir, renamings=("a=t", "b=t"))) == {"a": [0], "b": [0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t", "malformed"),
        ("new=:t", "malformed"),
        ("../new=t", "is not a topic name"),
        ("new=../t", "is not a topic name"),
        (f"{'n' * 250}=t", "is not a topic name"),
        ("__cluster_metadata=t", "is not a topic name"),
        ("new=/nowhere:t", "not one of the served directories"),
        ("new=tt", "nearest names are t"),
        ("u=t", "is already the name of another topic"),
    ],
)
def test_other_names_that_mean_nothing_are_refused(text: str, message: str, log_dir: Path) -> None:
    for name in ("t-0", "u-0"):
        write_partition(log_dir, name, 2)
    with pytest.raises(UsageError, match=message):
        catalog_of(log_dir, renamings=(text,))


def test_a_directory_may_have_a_colon_in_its_name() -> None:
    assert parse_renaming("a=/x:y/z:b") == Renaming("a", "b", Path("/x:y/z"))


# --------------------------------------------------------------------------------------------------- use by others
HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_directory_whose_lock_another_process_holds_is_refused(log_dir: Path, tmp_path: Path) -> None:
    write_partition(log_dir, "t-0", 1)
    write_partition(tmp_path / "free", "u-0", 1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(log_dir / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    for paths in ((log_dir,), (tmp_path / "free", log_dir), (log_dir / "t-0",)):
        with pytest.raises(DirectoryInUseError, match=f"process {holder.pid}"):
            catalog_of(*paths)
    holder.communicate()
    assert names(catalog_of(log_dir)) == {"t": [0]}


def test_paths_that_are_no_log_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(NotALogDirectoryError):
            catalog_of(path)


def read_everything(catalog: Catalog) -> int:
    size = 0
    for topic in catalog.topics():
        for log in topic.partitions.values():
            offset, isolation = log.log_start_offset, Isolation.TXN_COMMITTED
            while offset < log.last_stable_offset:
                fetched = log.read(offset, 1 << 20, isolation=isolation, min_one=True)
                if not fetched.size_bytes:
                    break
                size += fetched.size_bytes
                offset += 1
            log.offset_for_time(0)
            log.offset_of_largest_timestamp()
            log.end_offset_for_epoch(0)
    return size


def test_reading_everything_changes_nothing_in_a_directory_without_permission_to_write(tmp_path: Path) -> None:
    log_dir = kraft_dir(tmp_path / "broker")
    case = load_loading_case("unclean-untouched", tmp_path / "case")
    shutil.copytree(case.before, log_dir / "copied-0")
    (log_dir / ".lock").touch()
    paths = [log_dir, *log_dir.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = fingerprint(log_dir)
    try:
        assert read_everything(catalog_of(log_dir)) > 10_000
        assert fingerprint(log_dir) == before
    finally:
        for path in paths:
            path.chmod(0o755)


def test_an_interrupted_replacement_is_read_as_a_broker_would_complete_it(tmp_path: Path) -> None:
    case = load_loading_case("leftover-swap-clean", tmp_path)
    shutil.copytree(case.before, tmp_path / "logs" / "t-0")
    shutil.copytree(case.after, tmp_path / "after" / "t-0")
    started = time.monotonic()
    log = catalog_of(tmp_path / "logs").partition("t", 0)
    assert time.monotonic() - started < 4, "nothing waits for a replacement to end"
    expected = catalog_of(tmp_path / "after").partition("t", 0)
    assert (log.log_start_offset, log.log_end_offset) == (expected.log_start_offset, expected.log_end_offset)
    for offset in range(log.log_start_offset, log.log_end_offset, 7):
        assert content(log.read(offset, 1, **READ)) == content(expected.read(offset, 1, **READ))


def test_hundreds_of_partitions_are_opened_without_opening_their_segments(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    write_partition(log_dir, "t-0", 3)
    for number in range(1, 300):
        shutil.copytree(log_dir / "t-0", log_dir / f"t-{number}")
    descriptors = len(os.listdir("/proc/self/fd"))
    started = time.process_time()
    catalog = catalog_of(log_dir)
    assert time.process_time() - started < 1.0
    assert len(catalog.topic("t").partitions) == 300
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not caplog.text
    catalog.close()
