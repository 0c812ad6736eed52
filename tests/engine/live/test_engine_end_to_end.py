"""An engine under load: appends from several threads while cleaner, retention and checkpoints run in the background."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import threading
import time

from sediment.engine.live.scheduler import Clock
from sediment.segment_io.errors import OffsetOutOfRangeError, UsageError
from sediment.segment_io.format.names import TopicPartition
from tests.engine.managed import latest_of, one_batch, records_of, running, topic_config
from tests.twin.segments import list_segments
from tests.waiting import wait_until

COMPACTED = topic_config("compact", min_cleanable_dirty_ratio=0.0, segment_bytes=2000, file_delete_delay_ms=20)
BOTH = topic_config(
    "compact", "delete", min_cleanable_dirty_ratio=0.0, segment_bytes=2000, retention_ms=-1, file_delete_delay_ms=20
)
DELETED = topic_config("delete", segment_bytes=2000, retention_bytes=8000, retention_ms=-1, file_delete_delay_ms=20)
TOPICS = {"compacted": COMPACTED, "both": BOTH, "deleted": DELETED}
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in (0, 1)]
APPENDS = 1500

BUSY = {
    "background_threads": 4,
    "log_cleaner_threads": 2,
    "log_cleaner_backoff_ms": 5,
    "log_initial_task_delay_ms": 10,
    "log_retention_check_interval_ms": 10,
    "log_flush_scheduler_interval_ms": 10,
    "log_flush_offset_checkpoint_interval_ms": 10,
    "log_flush_start_offset_checkpoint_interval_ms": 10,
    "replica_high_watermark_checkpoint_interval_ms": 10,
    "producer_id_expiration_check_interval_ms": 10,
}


class Writer(threading.Thread):
    """Appends to one partition and remembers what the latest values are."""

    def __init__(self, log, seed):
        super().__init__()
        self.log = log
        self.random = random.Random(seed)
        self.latest: dict[bytes, bytes] = {}
        self.error: BaseException | None = None

    def run(self):
        try:
            for number in range(APPENDS):
                self.append(number)
        except BaseException as error:
            self.error = error

    def append(self, number):
        key = f"key-{self.random.randrange(40)}"
        value = None if self.random.random() < 0.1 else f"value-{number}"
        offset = self.log.append_as_leader(
            one_batch((key, value), timestamp_ms=time.time_ns() // 1_000_000), 0
        ).last_offset
        assert offset == number
        self.log.maybe_increment_high_watermark(offset + 1)
        if value is None:
            self.latest.pop(key.encode(), None)
        else:
            self.latest[key.encode()] = value.encode()


def test_appends_cleaning_and_retention_at_once_leave_the_latest_value_of_every_key(tmp_path, caplog):
    directories = [tmp_path / "a", tmp_path / "b"]
    with (
        caplog.at_level(logging.WARNING),
        running(*directories, topic=TOPICS, clock=Clock(), **BUSY) as engine,
    ):
        writers = {partition: Writer(engine.create_log(partition), seed) for seed, partition in enumerate(PARTITIONS)}
        for writer in writers.values():
            writer.start()
        while any(writer.is_alive() for writer in writers.values()):
            for partition in PARTITIONS:
                records = records_of_a_moment(engine.get_log(partition))
                assert records == sorted(set(records))
        for writer in writers.values():
            writer.join()
            assert writer.error is None
        settle(engine)
        cleaned = {p: len(records_of(engine.get_log(p))) for p in PARTITIONS if p.topic != "deleted"}
        assert all(count < APPENDS / 4 for count in cleaned.values()), cleaned
        for partition, writer in writers.items():
            if partition.topic != "deleted":
                assert latest_of(engine.get_log(partition)) == writer.latest
    assert caplog.text == ""

    with running(*directories, topic=TOPICS) as engine:
        for partition, writer in writers.items():
            log = engine.get_log(partition)
            assert (log.log_end_offset, log.high_watermark, log.loaded.damage) == (APPENDS, APPENDS, ())
            if partition.topic == "deleted":
                records = records_of(log)
                assert [record.offset for record in records] == list(range(log.log_start_offset, APPENDS))
                assert log.log_start_offset > 0 and log.size_bytes < 12_000
            else:
                assert latest_of(log) == writer.latest


def records_of_a_moment(log):
    """Offsets that a reader sees in one read, while everything goes on."""
    from tests.twin.segments import file_batches

    with log.lock:
        data = log.read(max(log.log_start_offset, log.log_end_offset - 200), 1 << 16).read()
    return [record.offset for _, batch in file_batches(data) for record in batch.records()]


def settle(engine):
    """Wait until cleaner and retention have seen everything that is rolled."""

    def is_settled(log):
        if log.config.compacts:
            first_dirty = engine.directory_of(log).first_dirty_offsets().get(log.partition, 0)
            return first_dirty >= log.active_base_offset
        return log.size_bytes < 12_000

    wait_until(lambda: all(is_settled(log) for log in engine.all_logs()))


def copy_moment(log, target):
    """Copy the log directory of a log in use as a crash could leave it.

    Checkpoints come first, because they never run ahead of the log; then segments, the newest first, because those
    before it do not change any more.
    """
    source = log.directory.parent
    target.mkdir()
    with log.lock:
        paths = sorted((path for path in source.rglob("*") if path.is_file()), reverse=True)
    for path in sorted(paths, key=lambda path: path.parent != source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a checkpoint that is being written
            shutil.copy2(path, copy)


def test_an_image_of_a_busy_engine_is_recovered_to_a_prefix_of_what_was_appended(tmp_path):
    """Recover a copy of the files at about one moment, as a crash leaves them."""
    with running(
        tmp_path / "a", topic={"t": topic_config("delete", segment_bytes=2000)}, clock=Clock(), **BUSY
    ) as engine:
        writer = Writer(engine.create_log(TopicPartition("t", 0)), 7)
        writer.start()
        wait_until(lambda: writer.log.log_end_offset >= 300 or not writer.is_alive())
        reached = writer.log.log_end_offset
        copy_moment(writer.log, tmp_path / "image")
        writer.join()
        assert writer.error is None
        whole = records_of(writer.log)
    with running(tmp_path / "image", topic={"t": topic_config("delete", segment_bytes=2000)}) as engine:
        log = engine.get_log(TopicPartition("t", 0))
        assert reached <= log.log_end_offset <= APPENDS
        assert records_of(log) == whole[: log.log_end_offset]


class Churn:
    """A thread that makes every call of an engine in random order until it is stopped."""

    def __init__(self, engine, seed):
        self.engine = engine
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.errors: list[BaseException] = []

    def thread(self, work):
        def run():
            while not self.stop.is_set():
                try:
                    work()
                except BaseException as error:
                    # Another thread deleted the log, or cut it, before this one came to it.
                    if not isinstance(error, (UsageError, OffsetOutOfRangeError)):
                        self.errors.append(error)
                        return

        return threading.Thread(target=run)

    def write(self):
        log = self.engine.create_log(TopicPartition("t", self.random.randrange(4)))
        for _ in range(20):
            value = "v" * self.random.randrange(20)
            log.append_as_leader(one_batch((f"k{self.random.randrange(20)}", value), timestamp_ms=1_700_000_000_000), 0)
            log.maybe_increment_high_watermark()

    def read(self):
        log = self.engine.get_log(TopicPartition("t", self.random.randrange(4)))
        if log is not None:
            fetched = log.read(log.log_start_offset, 1 << 20)
            try:
                fetched.read()
            except OSError as error:
                # The bytes are read without the log's lock, and another thread cut the log after the fetch.
                if error.strerror != "truncated while it was read":
                    raise

    def administrate(self):
        self.stop.wait(0.02)
        engine, partition = self.engine, TopicPartition("t", self.random.randrange(4))
        log = engine.get_log(partition)
        if log is None:
            return
        what = self.random.randrange(7)
        if what == 0:
            engine.truncate_to({partition: max(log.log_start_offset, log.log_end_offset - self.random.randrange(60))})
        elif what == 1:
            engine.truncate_fully_and_start_at(partition, log.log_end_offset)
        elif what == 2:
            engine.delete_log(partition)
        elif what == 3:
            log.maybe_increment_log_start_offset(log.log_start_offset + self.random.randrange(50))
        elif what == 4:
            engine.update_topic_config("t", self.random.choice(list(TOPICS.values())))
        elif what == 5:
            engine.cleaner.manager.abort_and_pause(partition)
            self.stop.wait(0.01)
            engine.cleaner.manager.resume([partition])
        else:
            log.roll()


def test_whatever_is_done_at_once_no_thread_fails_and_no_directory_goes_offline(tmp_path, caplog):
    directories = [tmp_path / "a", tmp_path / "b"]
    options = {"topic": COMPACTED, "clock": Clock(), "log_segment_delete_delay_ms": 50, **BUSY}
    with caplog.at_level(logging.WARNING), running(*directories, **options) as engine:
        churn = Churn(engine, 11)
        threads = [churn.thread(work) for work in (churn.write, churn.write, churn.read, churn.administrate)]
        for thread in threads:
            thread.start()
        time.sleep(3)
        churn.stop.set()
        for thread in threads:
            thread.join()
        assert churn.errors == []
        assert [directory.failure for directory in engine.directories()] == [None, None]
        assert engine.cleaner.manager.checkpoints.uncleanable() == {}
        ends = {log.partition: log.log_end_offset for log in engine.all_logs()}
    assert caplog.text == ""
    with running(*directories, topic=COMPACTED) as engine:
        assert {log.partition for log in engine.all_logs()} == set(ends)
        for log in engine.all_logs():
            # A cut into what was cleaned ends the log at an offset that no batch reaches, until it is loaded again.
            assert log.log_end_offset == list_segments(log.directory)[-1].next_offset() <= ends[log.partition]
            assert log.loaded.damage == ()
            assert not any(path.name.endswith((".part", ".cleaned", ".swap")) for path in log.directory.iterdir())
