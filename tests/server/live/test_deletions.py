"""Retention and the cleaner of a live server: where they run, when they begin, and what they leave."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sediment
from sediment.engine.clone.server_properties import HELD, server_properties
from sediment.engine.directory import throttle
from sediment.engine.live.cleaning_states import InProgress
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.scheduler import Clock
from sediment.jobs.serve import server_config
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.server_settings import server_settings, with_held_keys
from sediment.segment_io.errors import DirectoryInUseError, SettingsError, StorageError, UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.server.backends.live import LiveBackend
from sediment.server.delayed import Timer
from sediment.server.errors import ApiError, StartStoppedError
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.live.topic_configs import ConfigChange, Operation
from sediment.server.live.topic_rules import NewTopic
from sediment.server.network.endpoints import Endpoint
from sediment.server.server_config import ServerConfig
from tests.clocks import ManualClock
from tests.engine.managed import FailingFs, append, latest_of, one_batch
from tests.server.live.nodes import NODE, new_node, options_of, two_directories
from tests.twin.batches import Record, encode_batch
from tests.waiting import wait_until

HOUR_MS = 3_600_000
SMALL = ("internal.segment.bytes", "213")  # three records of one character
FULL_BYTES = 30 * 70  # of 30 such records
DELETE = (("cleanup.policy", "delete"), ("retention.ms", "1000"), SMALL)
COMPACT = (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"), SMALL)
BROKER = ResourceType.BROKER
RETENTION_BY_BROKER = ("log.cleanup.policy=delete", "log.retention.ms=1000")


class Node:
    """An open backend whose clock stands still, and its topics."""

    def __init__(self, backend: LiveBackend, clock: ManualClock) -> None:
        self.backend = backend
        self.clock = clock
        self.manager = backend._manager

    def create(self, name: str, *configs: tuple[str, str], partitions: int = 1) -> PartitionLog:
        (outcome,) = self.backend.topics.create([NewTopic(name, partitions, configs=configs)])
        assert not isinstance(outcome, ApiError), outcome
        return self.log(name)

    def log(self, name: str, number: int = 0) -> PartitionLog:
        log = self.manager.get_log(TopicPartition(name, number))
        assert log is not None
        return log

    def alter(self, name: str, **values: str | None) -> None:
        operations = {False: Operation.SET, True: Operation.DELETE}
        changes = [
            ConfigChange(key.replace("_", "."), operations[value is None], value) for key, value in values.items()
        ]
        self.backend.topics.alter_configs(name, changes)

    def alter_broker(self, configs: Mapping[str, str], name: str = "") -> None:
        self.backend.topics.change_configs(BROKER, name, lambda _: configs)

    def later(self, duration_ms: int = HOUR_MS) -> None:
        self.clock.advance(duration_ms)
        self.manager.run_due()


@contextlib.contextmanager
def node(
    *directories: Path, deletes: bool = True, clock: ManualClock | None = None, fs: Fs | None = None, **options: Any
) -> Iterator[Node]:
    clock = clock or ManualClock()
    backend = LiveBackend(options_of(*directories, **options), fs or Fs(), threading.Event(), clock)
    timer = Timer(name=None)
    backend.handlers(timer, ServerConfig(), GroupCoordinator(ServerConfig(), timer, time.monotonic_ns))
    try:
        if deletes:
            backend.start_deleting()
        yield Node(backend, clock)
    finally:
        backend.close()


def fill(log: PartitionLog, records: int = 7) -> list[int]:
    """Append records of the present, and return the first offsets of the segments."""
    append(log, *(("k", str(number % 10)) for number in range(records)))
    return list(log.base_offsets)


def bases(log: PartitionLog) -> list[int]:
    return list(log.base_offsets)


# -------------------------------------------------------------------------------------------------------------- stated
def test_retention_runs_after_the_initial_delay_where_policy_and_limit_are_stated(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        stated = live.create("stated", *DELETE)
        others = [
            live.create("nothing", SMALL),
            live.create("limit", SMALL, ("retention.ms", "1000")),
            live.create("policy", SMALL, ("cleanup.policy", "delete")),
            live.create("unlimited", SMALL, ("cleanup.policy", "delete"), ("retention.ms", "-1")),
        ]
        for log in (stated, *others):
            assert fill(log) == [0, 3, 6]
        live.later(29_999)
        assert bases(stated) == [0, 3, 6]
        live.later(1)
        assert bases(stated) == [7]
        for _ in range(3):
            live.later(1000 * HOUR_MS)
        assert [bases(log) for log in others] == [[0, 3, 6]] * 4
        assert live.backend.deletions() == (
            "retention: stated; no retention or compaction for limit, nothing (cleanup.policy is not stated); no "
            "retention or compaction for policy, unlimited (no retention limit is stated, or it is -1); committed "
            "offsets do not expire (offsets.retention.minutes is not stated); transactional ids do not expire "
            "(transactional.id.expiration.ms is not stated)"
        )


def test_retention_by_size_runs_where_it_is_stated(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        log = live.create("t", ("cleanup.policy", "delete"), ("retention.bytes", "213"), SMALL)
        fill(log, 12)
        live.later()
        assert bases(log) == [6, 9]


def test_the_cleaner_cleans_a_topic_that_states_its_policy(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        compacted, other = live.create("compacted", *COMPACT), live.create("other", SMALL)
        for log in (compacted, other):
            fill(log, 30)
        live.later()
        assert compacted.size_bytes < other.size_bytes == FULL_BYTES
        assert latest_of(compacted) == latest_of(other)
        assert live.manager.cleaner.last_cleaning.bytes_read > 0
        assert "compaction: compacted; no retention or compaction for other" in live.backend.deletions()


def test_internal_topics_have_only_their_own_policy(tmp_path: Path) -> None:
    sets = ("log.cleanup.policy=compact,delete", "log.retention.ms=1000", "log.cleaner.min.cleanable.ratio=0.01")
    with node(new_node(tmp_path / "data", {}), sets=sets) as live:
        bare = live.create("__transaction_state", SMALL)
        own = live.create("__consumer_offsets", SMALL, ("cleanup.policy", "compact"))
        for log in (bare, own):
            fill(log, 30)
        live.later()
        assert bases(bare) == list(range(0, 30, 3))
        assert own.size_bytes < FULL_BYTES and own.log_start_offset == 0
        assert latest_of(own) == latest_of(bare)


def test_other_configs_of_internal_topics_follow_the_broker(tmp_path: Path) -> None:
    sets = ("log.cleaner.delete.retention.ms=5", "log.retention.ms=1", "offsets.topic.segment.bytes=3145728")
    with node(new_node(tmp_path / "data", {}), sets=sets) as live:
        live.backend.make_coordinator_topic("__consumer_offsets")
        assert live.backend.catalog.metadata.topic_configs["__consumer_offsets"] == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "3145728",
        }
        log = live.log("__consumer_offsets")
        assert (log.config.compaction.delete_retention_ms, log.config.retention.retention_ms) == (5, -1)
        live.alter_broker({"log.cleaner.delete.retention.ms": "7", "log.retention.ms": "2"})
        assert (log.config.compaction.delete_retention_ms, log.config.retention.retention_ms) == (7, -1)


def test_a_key_of_the_broker_does_not_replace_a_topics_own_config(tmp_path: Path) -> None:
    file = tmp_path / "limits.properties"
    file.write_text("log.retention.bytes=1\n")
    with node(new_node(tmp_path / "data", {}), sets=RETENTION_BY_BROKER, config=file) as live:
        own = live.create("own", SMALL, ("retention.ms", "-1"), ("retention.bytes", "-1"))
        compacted = live.create("compacted", SMALL, ("cleanup.policy", "compact"))
        plain = live.create("plain", SMALL)
        for log in (own, compacted, plain):
            fill(log)
        live.later()
        assert (bases(own), bases(compacted)[0], bases(plain)) == ([0, 3, 6], 0, [7])
        live.alter_broker({"log.retention.ms": "500"})
        live.alter_broker({"log.retention.ms": "500"}, str(NODE.node_id))
        live.later()
        assert bases(own) == [0, 3, 6]


@pytest.mark.parametrize("given", ["t:retention.ms=5", "retention.ms=5", "delete.retention.ms=5"])
def test_a_set_option_cannot_be_a_config_of_topics(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match=r"is a config of (a topic|topics), but a live server reads"):
        options_of(new_node(tmp_path / "data", {}), sets=[given])


def test_a_config_deleted_back_to_its_default_turns_retention_off(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        log = live.create("t", *DELETE)
        fill(log)
        live.alter("t", retention_ms=None)
        live.later(1000 * HOUR_MS)
        assert bases(log) == [0, 3, 6]
        live.alter_broker({"log.retention.ms": "1000"})
        live.later()
        assert bases(log) == [7]
        fill(log)
        live.alter_broker({})
        live.later(1000 * HOUR_MS)
        assert bases(log) == [7, 10, 13]


def test_a_changed_limit_applies_to_the_next_run(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        log = live.create("t", *DELETE)
        fill(log)
        live.alter("t", retention_ms="-1")
        live.later()
        assert bases(log) == [0, 3, 6]
        live.alter("t", retention_ms="60000", cleanup_policy="compact")
        live.later()
        assert log.log_start_offset == 0


# --------------------------------------------------------------------------------------------------------- other files
def test_a_stale_bootstrap_checkpoint_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = new_node(tmp_path / "data", {})
    with node(path, deletes=False) as live:
        live.create("t", *DELETE)
        live.create("c", *COMPACT)
        fill(live.log("t"))
        fill(live.log("c"), 30)
    (path / ".kafka_cleanshutdown").unlink()  # a broker ran here, changed the configs in its own log, and was killed
    for _ in range(2):  # a clean stop of the server proves nothing about the broker
        caplog.clear()
        with node(path) as live:
            live.later()
            live.later()
            assert (bases(live.log("t")), live.log("c").size_bytes) == ([0, 3, 6], FULL_BYTES)
            assert live.backend.deletions().startswith("retention and the cleaner are off")
            assert live.backend.offsets_retention_minutes is None
        assert "bootstrap.checkpoint may be older than a broker's configs" in caplog.text


def test_after_clean_stops_the_checkpoint_is_current(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with node(path, deletes=False) as live:
        fill(live.create("t", *DELETE))
    for _ in range(2):
        with node(path) as live:
            live.later()
            assert bases(live.log("t")) == [7]


def properties(
    path: Path, log_dirs: Path, node_id: int = NODE.node_id, *, is_held: bool = False, more: str = ""
) -> Path:
    text = server_properties(log_dirs, node_id, host="localhost", port=9092, partition_counts={}, is_held=is_held)
    path.write_text(text + more)
    return path


def test_the_file_of_another_node_is_refused(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    file = properties(tmp_path / "other.properties", data, NODE.node_id + 1, more="log.retention.ms=1\n")
    with pytest.raises(SettingsError, match=r"--config is the file of node 8, and this is a directory of node 7"):
        options_of(data, config=file)


@pytest.mark.parametrize("roles", ["", "process.roles=broker\n"])
def test_a_broker_id_of_another_node_is_refused_as_its_node_id(tmp_path: Path, roles: str) -> None:
    data = new_node(tmp_path / "data", {})
    file = tmp_path / "other.properties"
    file.write_text(f"{roles}broker.id=8\nlog.dirs={data}\nlog.retention.ms=1\n")
    with pytest.raises(SettingsError, match=r"--config is the file of node 8, and this is a directory of node 7"):
        options_of(data, config=file)


def expires(live: Node, topic: str = "t") -> bool:
    """Return True if a topic without own configs loses records; they are seven days and an hour old."""
    log = live.create(topic, SMALL)
    fill(log)
    live.later(169 * HOUR_MS)
    return bases(log) != [0, 3, 6]


def test_the_data_directories_decide_whose_file_it_is(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    text = f"node.id=7\nlog.dirs={tmp_path / 'elsewhere'}\nmetadata.log.dir={data}\nlog.retention.ms=1\n"
    file = tmp_path / "other.properties"
    file.write_text(text)
    with node(data, deletes=False) as live:
        fill(live.create("t", SMALL))
    with node(data, config=file, clock=ManualClock(live.clock.now_ms() + 169 * HOUR_MS)) as live:
        live.later()
        assert bases(live.log("t")) == [0, 3, 6]
    file.write_text(text.replace("elsewhere", "data"))
    with node(data, config=file) as live:
        assert expires(live, "u")


@pytest.mark.parametrize("has_partitions", [False, True])
def test_a_metadata_directory_beside_the_data_belongs_to_the_node_unless_it_has_data(
    tmp_path: Path, has_partitions: bool
) -> None:
    first, second = two_directories(tmp_path)
    if not has_partitions:
        (first / "t-0").rename(second / "t-0")
    file = tmp_path / "own.properties"
    file.write_text(f"node.id=7\nlog.dirs={second}\nmetadata.log.dir={first}\nlog.cleanup.policy=delete\n")
    settings = server_settings(Settings.load(file, []), [first, second], Fs())
    assert settings.is_broker_file is not has_partitions
    assert ("log.cleanup.policy" in settings.config_file) is not has_partitions


def test_a_key_of_topics_in_a_file_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "limits.properties"
    file.write_text("cleanup.policy=delete\nretention.ms=1\n")
    with node(new_node(tmp_path / "data", {}), config=file) as live:
        assert not expires(live)
    assert "retention.ms is ignored" in caplog.text


def test_the_file_of_other_directories_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = new_node(tmp_path / "data", {})
    more = "log.retention.ms=1\nlog.cleanup.policy=delete\noffsets.retention.minutes=1\n"
    file = properties(tmp_path / "other.properties", tmp_path / "elsewhere", more=more)
    with node(data, config=file) as live:
        log = live.create("t", SMALL)
        fill(log)
        live.later(1000 * HOUR_MS)
        assert bases(log) == [0, 3, 6]
        assert live.backend.offsets_retention_minutes is None
    assert "--config names other log.dirs" in caplog.text


def test_a_file_without_log_dirs_is_that_of_kafkas_default_directory(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    file = tmp_path / "short.properties"
    file.write_text("process.roles=broker,controller\nnode.id=7\nlog.retention.ms=1\n")
    with node(data, config=file) as live:
        log = live.create("t", SMALL, ("cleanup.policy", "delete"))
        fill(log)
        live.later(1000 * HOUR_MS)
        assert bases(log) == [0, 3, 6]


@pytest.mark.parametrize("given", ["log.retention.hours=300", "log.retention.minutes=18000"])
def test_a_retention_time_given_with_set_replaces_that_of_the_file_in_any_unit(tmp_path: Path, given: str) -> None:
    data = new_node(tmp_path / "data", {})
    file = properties(tmp_path / "own.properties", data, more="log.retention.ms=1\n")
    with node(data, config=file, sets=[given]) as live:
        log = live.create("t", SMALL)
        fill(log)
        live.later(299 * HOUR_MS)
        assert bases(log) == [0, 3, 6]
        live.later(2 * HOUR_MS)
        assert bases(log) == [7]


def test_the_nodes_own_file_states_kafkas_defaults(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    with node(data, config=properties(tmp_path / "own.properties", data)) as live:
        log = live.create("t", SMALL)
        fill(log)
        live.later(167 * HOUR_MS)
        assert bases(log) == [0, 3, 6]
        live.later(2 * HOUR_MS)
        assert bases(log) == [7]


def test_a_held_clone_stays_held_with_any_config(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    properties(data / "server.properties", data, is_held=True)
    more = "log.retention.ms=1\nlog.retention.hours=1\nlog.cleaner.enable=true\noffsets.retention.minutes=1\n"
    file = properties(tmp_path / "server.properties", data, more=more)
    with node(data, config=file) as live:
        held = live.create("held", SMALL, ("retention.ms", "-1"), ("retention.bytes", "-1"))
        compacted, plain = live.create("compacted", *COMPACT), live.create("plain", SMALL)
        for log in (held, compacted, plain):
            fill(log, 30)
        for _ in range(3):
            live.later(1000 * HOUR_MS)
        assert [log.size_bytes for log in (held, compacted, plain)] == [FULL_BYTES] * 3
        assert live.backend.offsets_retention_minutes == int(HELD["offsets.retention.minutes"])
        assert "no retention or compaction for compacted (log.cleaner.enable is false)" in live.backend.deletions()
    with node(data, config=file, sets=["log.cleaner.enable=true"]) as live:
        live.later()
        assert live.log("compacted").size_bytes < FULL_BYTES
        assert bases(live.log("held")) == list(range(0, 30, 3))


HELD_TIMES = ["log.retention.ms=-1", "log.retention.minutes=-1", "log.retention.hours=-5"]


@pytest.mark.parametrize("held", HELD_TIMES)
@pytest.mark.parametrize("time", ["log.retention.ms=1", "log.retention.minutes=1", "log.retention.hours=1"])
def test_a_held_retention_time_is_held_in_any_unit(tmp_path: Path, held: str, time: str) -> None:
    data = new_node(tmp_path / "data", {})
    own = properties(data / "server.properties", data, is_held=True)
    own.write_text(own.read_text().replace("log.retention.ms=-1", held))
    file = properties(tmp_path / "server.properties", data, more=f"log.cleanup.policy=delete\n{time}\n")
    with node(data, config=file) as live:
        assert not expires(live)
    with node(data, config=file, sets=["log.retention.minutes=1"]) as live:
        assert expires(live, "u")


@pytest.mark.parametrize("broker", ["", str(NODE.node_id)])
@pytest.mark.parametrize("place", ["directory", "config"])
def test_a_dynamic_config_of_the_broker_does_not_end_the_hold(tmp_path: Path, place: str, broker: str) -> None:
    data = new_node(tmp_path / "data", {})
    file = properties(data / "server.properties", data, is_held=True)
    if place == "config":
        file = file.rename(tmp_path / "server.properties")
    dynamic = {"log.retention.ms": "1", "log.retention.bytes": "1", "log.cleanup.policy": "delete"}
    with node(data, config=file) as live:
        live.alter_broker(dynamic, broker)
        assert not expires(live, "later")
    with node(data, config=file) as live:  # the dynamic config is in the metadata
        assert not expires(live, "after")
    with node(data, config=file, sets=["log.retention.hours=-1", "log.retention.bytes=-1"]) as live:
        assert not expires(live, "still")
    with node(data, config=file, sets=["log.retention.hours=9000"]) as live:
        assert expires(live, "stated")


def test_open_transactions_of_a_held_clone_do_not_time_out(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    properties(data / "server.properties", data, is_held=True)
    key = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    for given, interval_ms in (([], int(HELD[key])), ([f"{key}=5"], 5)):
        config = server_config(with_held_keys(Settings.load(None, given), [data]))
        assert config.transaction_abort_timed_out_transaction_cleanup_interval_ms == interval_ms


# --------------------------------------------------------------------------------------------------------------- start
def aged_node(path: Path) -> Path:
    """Make a node with records that its topic no longer keeps."""
    with node(new_node(path, {}), deletes=False, clock=ManualClock(1_600_000_000_000)) as live:
        fill(live.create("t", *DELETE))
    return path


def segments(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "t-0").iterdir() if each.suffix == ".log")


AT_ONCE = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 1}


def server_options(path: Path, **options: Any) -> ServerOptions:
    return ServerOptions(options_of(path, threads=2, **AT_ONCE), Endpoint("127.0.0.1", 0), **options)


def server_over(path: Path, stop: threading.Event | None = None, **options: Any) -> KafkaServer:
    return KafkaServer(server_options(path, **options), Fs(), stop)


def test_nothing_is_deleted_before_the_start_has_succeeded(tmp_path: Path) -> None:
    path = aged_node(tmp_path / "data")
    with node(path, deletes=False, **AT_ONCE) as live:
        for _ in range(3):
            live.later()
        assert bases(live.log("t")) == [0, 3, 6]
    before = segments(path)
    with pytest.raises(UsageError, match="--request-log cannot be used"):
        server_over(path, request_log=tmp_path / "nowhere" / "log").start()
    assert segments(path) == before
    with server_over(path):
        wait_until(lambda: segments(path) == [f"{7:020d}.log"])


def test_a_stop_during_the_start_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = aged_node(tmp_path / "data")
    before = segments(path)
    stop = threading.Event()
    stop.set()
    with pytest.raises(StartStoppedError):
        server_over(path, stop).start()
    assert segments(path) == before

    class StopsLate(Fs):
        """A disk on which a signal arrives while the logs are being flushed, after they were loaded."""

        def sync_file(self, path: Path) -> None:
            late.set()
            super().sync_file(path)

    late = threading.Event()
    with KafkaServer(server_options(path), StopsLate(), late) as server:
        assert late.is_set()
        backend = server.backend
        assert isinstance(backend, LiveBackend)
        backend._manager.delete_old_segments()
        assert segments(path) == before


def test_deleted_records_expire_no_others(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {}), deletes=False) as live:
        log = live.create("t", *DELETE)
        fill(log)
        live.clock.advance(HOUR_MS)
        partition = live.backend.catalog.partition("t", 0)
        assert partition is not None
        partition.delete_records(4)
        partition.delete_segments_below_log_start()
        assert (bases(log), log.log_start_offset) == ([3, 6], 4)


def test_a_folder_of_a_deleted_topic_stays_until_the_start_has_succeeded(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with node(path) as live:
        live.create("t")
        topic = live.backend.catalog.topic("t")
        assert topic is not None
        live.backend.topics.delete({"t": topic.id})
    assert [each.name for each in path.glob("*-delete")]
    with node(path, deletes=False, **{**AT_ONCE, "log.segment.delete.delay.ms": 0}) as live:
        for _ in range(3):
            live.later()
        assert [each.name for each in path.glob("*-delete")]
        live.backend.start_deleting()
        live.later()
        live.later()
        assert not [each.name for each in path.glob("*-delete")]


# -------------------------------------------------------------------------------------------------------------- limits
def test_retention_ends_at_the_high_watermark_and_an_open_transaction(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        log = live.create("t", *DELETE)
        for number in range(7):  # as with --flush-acks before the flush: appended, but not replicated
            log.append_as_leader(one_batch(("k", str(number)), timestamp_ms=live.clock.now_ms()), 0)
        live.later()
        assert bases(log) == [0, 3, 6]
        log.maybe_increment_high_watermark(4)
        live.later()
        assert bases(log) == [3, 6]
        log.maybe_increment_high_watermark()
        now_ms = live.clock.now_ms()
        data = encode_batch(
            [Record(0, now_ms, b"k", b"v")],
            base_offset=0,
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        guard = log.maybe_start_transaction_verification(5, 0, 0, supports_epoch_bump=False)
        log.append_as_leader(data, 0, verification_guard=guard)
        fill(log)
        before = log.last_stable_offset
        assert before == 7
        live.later()
        assert bases(log)[0] <= 7 < log.log_end_offset
        assert log.read(7, 1 << 20).read()


def test_with_flush_acks_only_flushed_records_expire(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    clock = ManualClock()
    backend = LiveBackend(replace(options_of(path), flush_acks=True), Fs(), threading.Event(), clock)
    timer = Timer(name=None)
    backend.handlers(timer, ServerConfig(), GroupCoordinator(ServerConfig(), timer, time.monotonic_ns))
    live = Node(backend, clock)
    try:
        backend.start_deleting()
        log = live.create("t", *DELETE)
        for number in range(7):
            log.append_as_leader(one_batch(("k", str(number)), timestamp_ms=clock.now_ms()), 0)
        live.later()
        assert (log.high_watermark, bases(log)) == (0, [0, 3, 6])
        partition = backend.catalog.partition("t", 0)
        assert partition is not None
        partition.append(one_batch(("k", "v"), timestamp_ms=clock.now_ms()))
        wait_until(lambda: log.high_watermark == log.log_end_offset)
        live.later()
        assert bases(log) == [8]
    finally:
        backend.close()


def test_a_failing_disk_stops_only_its_own_retention(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    fs = FailingFs()
    with node(first, second, fs=fs) as live:
        live.alter("t", cleanup_policy="delete", retention_ms="1000", internal_segment_bytes="213")
        logs = [live.log("t", number) for number in (0, 1)]
        for log in logs:
            log.roll()
            fill(log)
        fs.broken.add(first)
        live.later()
        assert live.manager.get_log(TopicPartition("t", 0)) is None
        assert bases(logs[1]) == [7]
        append(logs[1], *[("k", "v")] * 7)
        live.later()
        assert bases(logs[1]) == [14]


def test_an_error_in_one_log_does_not_stop_the_retention_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with node(new_node(tmp_path / "data", {})) as live:
        first, second = live.create("a", *DELETE), live.create("b", *DELETE)
        for log in (first, second):
            fill(log)
        (first.directory / f"{0:020d}.log").rename(first.directory / "gone")
        monkeypatch.setattr(first, "delete_old_segments", lambda: first.read(-5, 1))
        live.later()
        assert (bases(first), bases(second)) == ([0, 3, 6], [7])
        assert "retention of a-0 failed" in caplog.text
        monkeypatch.undo()
        (first.directory / "gone").rename(first.directory / f"{0:020d}.log")


def test_deletion_ends_if_it_is_not_known_whether_a_change_of_configs_is_durable(tmp_path: Path) -> None:
    class Torn(Fs):
        is_torn = False

        def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
            super().replace_file(path, content, like=like)
            if self.is_torn and path.name == "bootstrap.checkpoint":
                raise OSError(5, "no sync", str(path))

    first, second = two_directories(tmp_path)
    fs = Torn()
    with node(first, second, fs=fs) as live:
        live.alter("t", cleanup_policy="delete", retention_ms=str(2 * HOUR_MS), internal_segment_bytes="213")
        log = live.log("t", 1)
        log.roll()
        fill(log)
        fs.is_torn = True
        with pytest.raises(ApiError):
            live.alter("t", retention_ms="-1")
        live.later(1000 * HOUR_MS)
        assert len(bases(log)) > 1


def test_a_stop_does_not_wait_for_a_throttled_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "CHECK_INTERVAL_MS", 0)  # else a cleaning of a few ms is over before it is throttled
    path = new_node(tmp_path / "data", {})
    with node(path, deletes=False) as live:
        fill(live.create("c", *COMPACT), 60)
    options = options_of(path, sets=["log.cleaner.io.max.bytes.per.second=1"], threads=2)
    backend = LiveBackend(options, Fs(), threading.Event(), Clock())
    states = backend._manager.cleaner.manager.states
    try:
        backend.start_deleting()
        wait_until(lambda: states.of(TopicPartition("c", 0)) == InProgress())
        assert backend._manager.get_log(TopicPartition("c", 0)) is not None
        started = time.monotonic()
        backend.stop_deleting()
    finally:
        backend.close()
    assert time.monotonic() - started < 20  # at one byte a second, the cleaning would take an hour
    with node(path, deletes=False) as live:
        assert live.log("c").size_bytes == 2 * FULL_BYTES


def test_jobs_cannot_change_the_directory_of_a_running_server(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with node(path):
        for name, policy in (("compact", "compact"), ("expire", "delete")):
            logs = sediment.LogDirectories(path, settings=[f"t:cleanup.policy={policy}", "t:retention.ms=1"])
            with pytest.raises(DirectoryInUseError):
                getattr(logs, name)()


# ----------------------------------------------------------------------------------------------------- broker's configs
def test_changed_configs_of_the_broker_reach_open_logs_and_the_cleaner_at_once(tmp_path: Path) -> None:
    with node(new_node(tmp_path / "data", {"t": 1})) as live:
        own = live.create("own", ("max.message.bytes", "77"))
        log = live.log("t")
        live.alter_broker({"message.max.bytes": "5000", "log.cleaner.threads": "2", "log.cleaner.backoff.ms": "5"})
        assert (log.config.compaction.max_message_bytes, own.config.compaction.max_message_bytes) == (5000, 77)
        assert live.manager.config.log_cleaner_threads == 2
        live.alter_broker({"message.max.bytes": "6000"}, str(NODE.node_id))
        assert log.config.compaction.max_message_bytes == 6000
        with pytest.raises(ApiError, match="Invalid dynamic configuration"):
            live.alter_broker({"log.cleaner.threads": "9"})
        assert live.create("new").config.compaction.max_message_bytes == 6000
    with node(tmp_path / "data") as live:
        assert live.log("t").config.compaction.max_message_bytes == 6000


def test_a_cleaning_follows_a_changed_rate(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with node(path, deletes=False) as live:
        fill(live.create("c", *COMPACT), 60)
        before = latest_of(live.log("c"))
    options = options_of(path, sets=["log.cleaner.io.max.bytes.per.second=1"], threads=2)
    backend = LiveBackend(options, Fs(), threading.Event(), Clock())
    timer = Timer(name=None)
    backend.handlers(timer, ServerConfig(), GroupCoordinator(ServerConfig(), timer, time.monotonic_ns))
    try:
        backend.start_deleting()
        states = backend._manager.cleaner.manager.states
        wait_until(lambda: states.of(TopicPartition("c", 0)) == InProgress())
        rate = {"log.cleaner.io.max.bytes.per.second": "1000000000"}
        backend.topics.change_configs(BROKER, "", lambda _: rate)
        log = backend._manager.get_log(TopicPartition("c", 0))
        assert log is not None
        wait_until(lambda: log.size_bytes < 2 * FULL_BYTES)
        assert latest_of(log) == before
    finally:
        backend.close()


def test_the_start_warns_of_what_it_leaves_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = new_node(tmp_path / "data", {f"t{number}": 1 for number in range(5)})
    with node(path, sets=["offsets.retention.minutes=2147483647"]) as live:
        assert "committed offsets do not expire (offsets.retention.minutes is 2147483647)" in live.backend.deletions()
    with node(path, sets=["offsets.retention.minutes=5"]) as live:
        assert live.backend.deletions() == (
            "no retention or compaction for t0, t1, t2 and 2 more (cleanup.policy is not stated); committed offsets "
            "expire after 5 minutes; transactional ids do not expire (transactional.id.expiration.ms is not stated)"
        )
    assert not [record for record in caplog.records if "stale" in record.message]


def test_a_disk_that_failed_has_no_retention(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    fs = FailingFs()
    with node(path, fs=fs) as live:
        log = live.create("t", *DELETE)
        fill(log)
        fs.broken.add(path)
        live.later()
        live.later()
        assert live.backend.failure is not None
        with pytest.raises(StorageError):
            log.delete_old_segments()
