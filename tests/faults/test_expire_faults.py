"""Every step of `expire` interrupted by a kill, an error, a torn write or a power loss, and then repeated.

Whatever is left, no record that retention keeps is lost, the log start offset is true, and the repeated run ends where
an undisturbed one does.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.expire import expire
from sediment.jobs.expiring.report import ExpiryRunReport
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_checkpoints
from tests.faults.faulty_fs import Disk, Fail, FaultyFs, Image, read_image, write_image
from tests.jobs.expiring.expired_logs import NAME, make_log
from tests.segments import NOW_MS
from tests.twin.segments import list_segments

PARTITION = TopicPartition("orders", 0)
EPOCHS = "0\n3\n0 0\n1 7\n2 12\n"
TEMPORARY = (".deleted", ".tmp")

SCENARIOS = {
    "some segments": ("retention.bytes=360", "retention.ms=-1"),
    "every segment": ("retention.bytes=0", "retention.ms=-1"),
}


@dataclass
class Log:
    """A directory as it is before, and what an undisturbed run makes of it.

    `recoverable` are the contents of which that was asserted: the same files have the same result.
    """

    log_dir: Path
    sets: tuple[str, ...]
    before: tuple[Image, Image]
    after: tuple[dict[str, bytes], dict[str, bytes]]
    records: dict[int, bytes]
    start_after: int
    recoverable: set[tuple[frozenset[tuple[str, bytes]], ...]] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        return self.log_dir / NAME

    def lay_out(self, images: tuple[Image, ...] | None = None) -> None:
        """Write log directory and partition as in `images`, or as before the run."""
        top, partition = images or self.before
        write_image(self.directory, partition)
        write_image(self.log_dir, top)

    def images(self) -> tuple[Image, Image]:
        return read_image(self.log_dir), read_image(self.directory)

    def run(self, fs: Fs) -> ExpiryRunReport:
        options = CommonOptions(
            log_dirs=(self.log_dir,),
            settings=Settings.load(None, self.sets, broker_defaults=True),
            now_ms=NOW_MS,
            as_json=True,
            quiet=True,
        )
        return expire(options, fs=fs)


class FsOfBoth(FaultyFs):
    """A faulty filesystem whose disk is that of a log directory and of a partition in it."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__()
        self.disks = [Disk(log_dir), Disk(log_dir / NAME)]

    def _note(self, note, directory: Path) -> None:
        for disk in self.disks:
            if disk.directory == directory:
                note(disk)


def contents(directory: Path) -> dict[str, bytes]:
    ignored = (".lock", *TEMPORARY)
    return {name: content for name, (content, _) in read_image(directory).items() if not name.endswith(ignored)}


def records_of(directory: Path) -> dict[int, bytes]:
    return {
        record.offset: record.value
        for segment in list_segments(directory)
        for _, batch in segment.batches()
        for record in batch.records()
    }


@pytest.fixture(params=SCENARIOS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    log_dir = tmp_path / "logs"
    directory = make_log(log_dir, epochs=EPOCHS)
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nother 3 77\n")
    (directory / "00000000000000000015.snapshot").unlink()
    given = Log(log_dir, SCENARIOS[request.param], ({}, {}), ({}, {}), records_of(directory), 0)
    (log_dir / ".lock").touch()
    given.before = given.images()
    report = given.run(Fs()).partitions[0]
    assert report.status == "expired" and report.log_start_offset is not None
    given.after = contents(log_dir), contents(directory)
    given.start_after = report.log_start_offset
    given.lay_out()
    return given


def assert_nothing_lost(log: Log) -> None:
    """Assert that a start finds the log at the old or the new log start, with every record from there on."""
    checkpoints = read_checkpoints(log.log_dir, Fs()).of(PARTITION)
    found = records_of(log.directory)
    loaded = load_log(
        PARTITION, log.directory, LogConfig(compaction=CompactionConfig(cleanup_policy=("delete",))), checkpoints, Fs(),
        now_ms=NOW_MS,
    )  # fmt: skip
    assert loaded.log_start_offset <= log.start_after
    assert loaded.log_end_offset == 15
    kept = {offset: value for offset, value in log.records.items() if offset >= loaded.log_start_offset}
    assert {offset: value for offset, value in found.items() if offset >= loaded.log_start_offset} == kept


def assert_repeat_completes(log: Log) -> None:
    run = log.run(Fs())
    assert not run.failed, run
    assert run.partitions[0].log_start_offset == log.start_after
    assert (contents(log.log_dir), contents(log.directory)) == log.after


def assert_recoverable(log: Log, images: tuple[Image, ...]) -> None:
    key = tuple(frozenset((name, content) for name, (content, _) in image.items()) for image in images)
    if key in log.recoverable:
        return
    log.lay_out(images)
    assert_repeat_completes(log)
    log.lay_out(images)
    assert_nothing_lost(log)
    log.recoverable.add(key)


@dataclass(frozen=True, slots=True)
class Crashed:
    """Log directory and partition after an operation: as a kill leaves them, and as a power loss might."""

    killed: tuple[Image, Image]
    without_power: list[tuple[Image, ...]]


def crashes(log: Log) -> list[Crashed]:
    """Return what a crash after each operation would leave, read after each one of an undisturbed run."""
    log.lay_out()
    fs = FsOfBoth(log.log_dir)
    found: list[Crashed] = []

    def note() -> None:
        survivors = itertools.product(*(disk.after_power_loss() for disk in fs.disks))
        found.append(Crashed(log.images(), list(survivors)))

    fs.after_each = note
    assert not log.run(fs).failed
    assert len(found) == fs.operations > 20
    return found


def test_a_run_killed_after_any_step_loses_nothing_and_the_next_run_completes_it(log: Log):
    for crash in crashes(log):
        assert_recoverable(log, crash.killed)


def test_a_power_loss_after_any_step_loses_nothing_and_the_next_run_completes_it(log: Log):
    for crash in crashes(log):
        for images in crash.without_power:
            assert_recoverable(log, images)
    assert len(log.recoverable) > 20


@pytest.mark.parametrize(
    ("number", "torn"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)], ids=["EIO", "ENOSPC", "torn"]
)
def test_a_run_that_fails_at_any_step_says_so_loses_nothing_and_can_be_repeated(log: Log, number: int, torn: bool):
    for place in itertools.count(1):
        log.lay_out()
        fs = FaultyFs(Fail(place, number, torn))
        run = log.run(fs)
        if fs.operations < place:
            assert not run.failed
            break
        report = run.partitions[0]
        assert run.failed == (report.status == "failed")
        if run.failed:
            assert report.reason
            assert list(report.segments) == [segment.base_offset for segment in list_segments(log.directory)]
        assert_recoverable(log, log.images())
    assert place > 20


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_full_disk_that_has_no_room_for_a_file_still_gets_room_by_expiry(tmp_path: Path, scenario: str):
    class FullDisk(FaultyFs):
        def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    log_dir = tmp_path / "logs"
    directory = make_log(log_dir)
    log = Log(log_dir, SCENARIOS[scenario], ({}, {}), ({}, {}), records_of(directory), 10)
    report = log.run(FullDisk()).partitions[0]
    assert [segment.base_offset for segment in list_segments(directory)] == list(report.segments) == [10]
    assert (report.status, report.log_start_offset, report.bytes_after) == ("expired", 10, 360)
    assert_nothing_lost(log)
    assert log.run(Fs()).partitions[0].segments == ((10,) if scenario == "some segments" else (15,))


def test_epochs_that_a_full_disk_had_no_room_for_are_cut_by_the_next_run_that_has_nothing_to_delete(tmp_path: Path):
    class FullDisk(Fs):
        def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    log_dir = tmp_path / "logs"
    directory = make_log(log_dir, epochs=EPOCHS)
    log = Log(log_dir, SCENARIOS["some segments"], ({}, {}), ({}, {}), records_of(directory), 10)
    assert log.run(FullDisk()).failed
    assert (directory / "leader-epoch-checkpoint").read_text() == EPOCHS
    report = log.run(Fs()).partitions[0]
    assert (report.reason_code, report.segments) == ("nothing-to-delete", (10,))
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n2\n1 10\n2 12\n"
