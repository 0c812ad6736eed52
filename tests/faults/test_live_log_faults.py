"""A live log after repeated disk failures, kills of its process and power losses of its machine.

SEDIMENT_CRASHES is how many crashes the long run has (60; the target `crash` has 500), SEDIMENT_CRASH_SEED its seed.

What must hold after every crash, whatever of the unsynced pages and names survived: the log opens; what was appended
and flushed is there, byte for byte; no offset below what was flushed is given again; whatever is there at an offset is
what was last appended there.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import StorageError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.engine.live_logs import NOW_MS, Tasks, config
from tests.faults.faulty_fs import Disk, Fail, FaultyFs, Kill, Killed, read_image, write_image
from tests.twin.batches import ControlType, encode_marker
from tests.twin.segments import file_batches

CRASHES = int(os.environ.get("SEDIMENT_CRASHES", "60"))
SEED = int(os.environ.get("SEDIMENT_CRASH_SEED", "0"))
CONFIG = config(segment_bytes=3000, index_interval_bytes=300, segment_index_bytes=480)


def opened(
    directory: Path, fs: Fs, tasks: Tasks, *, recovery_point: int = 0, clean: bool = False, given: LogConfig = CONFIG
) -> PartitionLog:
    return PartitionLog.open(
        TopicPartition("t", 0),
        directory,
        given,
        PartitionCheckpoints(recovery_point=recovery_point, clean_shutdown=clean),
        fs,
        clock=lambda: tasks.now_ms,
        scheduler=tasks,
        verify_transactions=False,
    )


@dataclass(slots=True)
class History:
    """The acknowledged batches, base offset -> batch as it must be stored, and the offset of the last flush."""

    batches: dict[int, bytes] = field(default_factory=dict)
    unacknowledged: list[bytes] = field(default_factory=list)
    flushed: int = 0
    checkpoint: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    in_transaction: set[int] = field(default_factory=set)

    def flushed_to(self, recovery_point: int) -> None:
        """Note a flush; after a truncation inside a batch, a restart falls back to the end of the last whole batch."""
        ends = (base + _delta(data) + 1 for base, data in self.batches.items())
        self.flushed = max((end for end in ends if end <= recovery_point), default=0)


def _delta(data: bytes) -> int:
    """Return the last offset delta of a batch."""
    return int.from_bytes(data[23:27], "big")


class Life:
    """One process that owns the log until it is killed."""

    def __init__(self, log: PartitionLog, history: History, chance: random.Random) -> None:
        self.log = log
        self.history = history
        self.chance = chance
        for producer_id, entry in log.producers.entries.items():
            history.epochs[producer_id] = entry.producer_epoch
            history.sequences[producer_id] = entry.last_sequence + 1
        history.in_transaction = {key for key, entry in log.producers.entries.items() if entry.has_open_transaction}

    def act(self) -> None:
        action = self.chance.choices(
            (self.append, self.mark, self.flush, self.roll, self.truncate, self.checkpoint, self.idle),
            (70, 12, 8, 3, 2, 4, 1),
        )[0]
        action()

    def append(self) -> None:
        history, chance = self.history, self.chance
        records = [
            NewRecord(NOW_MS + self.log.log_end_offset, chance.randbytes(4), chance.randbytes(chance.randrange(200)))
            for _ in range(chance.randrange(1, 5))
        ]
        head = BatchHead(leader_epoch=1)
        producer_id = chance.choice((-1, -1, 1, 2, 3))
        if producer_id >= 0:
            transactional = producer_id > 1
            sequence = history.sequences.get(producer_id, 0)
            head = BatchHead(
                leader_epoch=1,
                producer_id=producer_id,
                producer_epoch=history.epochs.get(producer_id, 0),
                base_sequence=sequence,
                is_transactional=transactional,
            )
        self._append(build_batch(records, head), len(records), AppendOrigin.CLIENT)
        if producer_id >= 0:
            history.sequences[producer_id] = head.base_sequence + len(records)
            if head.is_transactional:
                history.in_transaction.add(producer_id)

    def mark(self) -> None:
        if self.history.in_transaction:
            producer_id = self.chance.choice(sorted(self.history.in_transaction))
            marker = encode_marker(
                ControlType.COMMIT if self.chance.random() < 0.5 else ControlType.ABORT,
                offset=0,
                timestamp=NOW_MS,
                leader_epoch=1,
                producer_id=producer_id,
                producer_epoch=self.history.epochs.get(producer_id, 0),
                coordinator_epoch=0,
            )
            self._append(marker, 1, AppendOrigin.COORDINATOR)
            self.history.in_transaction.discard(producer_id)

    def _append(self, data: bytes, count: int, origin: AppendOrigin) -> None:
        base_offset = self.log.log_end_offset
        stored = base_offset.to_bytes(8, "big") + data[8:]
        self.history.unacknowledged = [stored]
        info = self.log.append_as_leader(data, 1, origin=origin, transaction_version=0)
        assert (info.first_offset, info.last_offset) == (base_offset, base_offset + count - 1)
        self.history.batches[base_offset] = stored
        self.log.maybe_increment_high_watermark()

    def flush(self) -> None:
        self.log.flush()
        self.history.flushed_to(self.log.recovery_point)

    def roll(self) -> None:
        self.log.roll()

    def truncate(self) -> None:
        offset = max(self.log.log_end_offset - self.chance.randrange(8), 0)
        history = self.history
        kept = dict(history.batches)
        for base, data in list(history.batches.items()):
            if base >= offset or base + _delta(data) >= offset:
                history.unacknowledged.append(data)
                del history.batches[base]
        history.flushed_to(min(history.flushed, offset))
        try:
            self.log.truncate_to(offset)
        except Killed:
            history.unacknowledged += kept.values()
            raise
        for producer_id in (1, 2, 3):
            entry = self.log.producers.entries.get(producer_id)
            history.sequences[producer_id] = 0 if entry is None else entry.last_sequence + 1
        history.in_transaction = {
            key for key, entry in self.log.producers.entries.items() if entry.has_open_transaction
        }

    def checkpoint(self) -> None:
        self.history.checkpoint = self.log.recovery_point

    def idle(self) -> None:
        self.log.remove_expired_producers()


def stored_batches(directory: Path) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for path in sorted(directory.glob("*.log")):
        for _position, batch in file_batches(path.read_bytes()):
            assert batch.is_valid()
            assert batch.base_offset not in found
            found[batch.base_offset] = batch.data
    return found


def assert_recovered(log: PartitionLog, history: History) -> None:
    """Assert the rules of the module; `history` is then set to the contents of the log."""
    found = stored_batches(log.directory)
    assert log.log_end_offset >= history.flushed
    for base_offset, data in history.batches.items():
        if base_offset + _delta(data) < history.flushed:
            assert found[base_offset] == data, f"the flushed batch at {base_offset} is lost"
    allowed = set(history.unacknowledged)
    for base_offset, data in found.items():
        assert history.batches.get(base_offset) == data or data in allowed
    ends = sorted((base, base + _delta(data) + 1) for base, data in found.items())
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ends))
    assert log.log_end_offset >= max((end for _, end in ends), default=0)
    for base_offset, data in found.items():
        assert log.read(base_offset, len(data)).read() == data
    history.batches = found
    history.unacknowledged = []


def live_until_killed(directory: Path, history: History, chance: random.Random, fault: Kill) -> FaultyFs:
    fs = FaultyFs(fault=None, disk=Disk(directory))
    tasks = Tasks(held=chance.random() < 0.5)
    log = opened(directory, fs, tasks, recovery_point=history.checkpoint)
    assert_recovered(log, history)
    life = Life(log, history, chance)
    fs.fault = Kill(fs.operations + fault.number, torn=fault.torn)
    try:
        for _ in range(400):
            life.act()
            if chance.random() < 0.1:
                tasks.run()
                history.flushed_to(log.recovery_point)
    except Killed:
        pass
    log.close_handlers()
    return fs


def crash_again_and_again(directory: Path, crashes: int, seed: int) -> None:
    chance = random.Random(seed)
    lives = 0
    while lives < crashes:
        history = History()
        write_image(directory, {})
        for _ in range(20):
            lives += 1
            fault = Kill(chance.randrange(1, 160), torn=chance.random() < 0.4)
            fs = live_until_killed(directory, history, chance, fault)
            assert fs.disk is not None
            image = fs.disk.after_random_power_loss(chance) if chance.random() < 0.7 else read_image(directory)
            write_image(directory, image)
    log = opened(directory, Fs(), Tasks(), recovery_point=history.checkpoint)
    assert_recovered(log, history)
    log.close()


@pytest.mark.timeout(600)
def test_nothing_that_was_flushed_is_lost_over_many_crashes(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    crash_again_and_again(directory, CRASHES, SEED)


# ------------------------------------------------------------------------------------------------------- the disk fails
def scripted(log: PartitionLog, tasks: Tasks, acknowledged: list[int]) -> None:
    """Appends, rolls, flushes, a truncation and a retention run; `acknowledged` are log end offsets."""
    for number in range(14):
        data = build_batch(
            [NewRecord(NOW_MS, b"k", bytes([number]) * 300)],
            BatchHead(producer_id=1, producer_epoch=0, base_sequence=number),
        )
        acknowledged.append(log.append_as_leader(data, number // 5).last_offset + 1)
        log.maybe_increment_high_watermark()
        tasks.run()
    log.flush()
    log.roll()
    tasks.run()
    log.maybe_increment_log_start_offset(9)
    log.delete_old_segments()
    tasks.move(60_000)


@pytest.mark.parametrize(("code", "torn"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_whichever_operation_fails_the_log_goes_offline_and_loses_nothing(
    tmp_path: Path, code: int, torn: bool
) -> None:
    directory = tmp_path / "t-0"
    number = 0
    while True:
        number += 1
        write_image(directory, {})
        fs, tasks = FaultyFs(), Tasks()
        log = opened(directory, fs, tasks, clean=True)
        fs.fault = Fail(fs.operations + number, code, torn=torn)
        acknowledged: list[int] = []
        try:
            scripted(log, tasks, acknowledged)
        except StorageError:
            assert log.is_offline
            with pytest.raises(StorageError):
                log.append_as_leader(build_batch([NewRecord(NOW_MS, b"k", b"v")]), 0)
        else:
            assert fs.operations < fs.fault.number
            break
        end_offset = acknowledged[-1] if acknowledged else 0
        log.close()
        again = opened(directory, Fs(), Tasks())
        # The append that broke off may be there: it was not answered.
        assert end_offset <= again.log_end_offset <= end_offset + 1
        kept = stored_batches(directory)
        assert max(kept, default=-1) == again.log_end_offset - 1
        again.close()
    assert number > 60
