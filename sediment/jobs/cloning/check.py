"""`sediment clone --check DIR`: compare the files of a copy with its manifest, and report the differences.

The copy is a clone or an output of `compact --output`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sediment.engine.copying.check import FileDifference, check_copy
from sediment.jobs.cloning.report import UNCHANGED
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import StoppedError
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.columns import TableColumn, bytes_column, name_and_status, number_column
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, FAILED, QUARANTINED, RunReport, in_order
from sediment.jobs.reporting.screen import Screen
from sediment.segment_io.errors import PartitionFailure, UsageError
from sediment.segment_io.format.names import METADATA_PARTITION, new_run_id
from sediment.segment_io.manifest import Manifest, ManifestFile, ManifestPartition, read_copy_manifest
from sediment.segment_io.stores import Store

DIFFERS = "differs"
CORRUPT = "corrupt-batch"

_SHOWN = 20
_OPTIONS = frozenset(
    {"--check", "--json", "--json-lines", "--quiet", "--log-format", "--now-ms", "--ledger", "--report", "--metrics"}
)
_WAS_STARTED = (
    f"{METADATA_PARTITION} is not in the manifest: a broker has been started on this directory.  A started clone no "
    "longer equals its manifest; check clones that no broker has started on"
)


@dataclass(frozen=True, slots=True)
class CheckedCopyPartition:
    """Result of one partition of a copy; `bytes` is the size of all its files in the manifest.

    `files_that_differ` also counts files that the manifest does not name; `problems` describes the first 20 files that
    differ.  Files in `files_without_digest` were compared by size only.
    """

    partition: str
    log_dir: str
    status: str
    reason_code: str | None = None
    reason: str | None = None
    files: int = 0
    bytes: int = 0
    files_without_digest: int = 0
    files_that_differ: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CopyCheckReport(RunReport[CheckedCopyPartition]):
    """Report of `clone --check`.

    `run_checked` is the id of the run that made the copy.  `files`, `files_without_digest` and `files_that_differ`
    include the files outside the partition folders.  `problems` are the first 20 differences that belong to no
    partition of the manifest.
    """

    row_type: ClassVar[type] = CheckedCopyPartition

    copy: str
    run_checked: str
    files: int
    files_without_digest: int
    files_that_differ: int
    bytes_read: int
    problems: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)
    notes: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Return the problems in files outside the partition folders, and the partitions with differences."""
        beside = [PartitionFailure(self.copy, None, DIFFERS, problem) for problem in self.problems]
        return (*beside, *RunReport.failures(self))


def check_clone(options: CommonOptions, where: str, *, stop: threading.Event | None = None) -> CopyCheckReport:
    started = time.monotonic()
    others = ["SOURCE"] * bool(options.log_dirs) + [name for name, _ in options.given if name not in _OPTIONS]
    if others:
        raise UsageError("--check makes no clone", advice=f"leave out {', '.join(dict.fromkeys(others))}")
    copy = Store(where)
    manifest = read_copy_manifest(copy)
    size_bytes = sum(file.size_bytes for file in manifest.files)

    def end_if_stopped(_: int) -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    folders = {file.folder for file in manifest.files}
    with Progress(options.messages(), len(folders), size_bytes, phase="checking") as progress:
        checked = check_copy(copy, manifest, on_bytes=end_if_stopped, on_folder=progress.advance)
    end_if_stopped(0)
    rows, beside = _by_partition(str(copy), manifest, checked.differences)
    was_started = any(difference.folder == str(METADATA_PARTITION) for difference in beside)
    report = CopyCheckReport(
        run_id=new_run_id(),
        command="clone",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=in_order(rows),
        copy=str(copy),
        run_checked=manifest.run_id,
        files=len(manifest.files),
        files_without_digest=checked.files_without_digest,
        files_that_differ=len(checked.differences),
        bytes_read=checked.read_bytes,
        problems=_sentences(beside),
        notes=(_WAS_STARTED,) if was_started else (),
    )
    for row in report.partitions:
        log_partition(report.run_id, "clone", row)
    return report


def _by_partition(
    copy: str, manifest: Manifest, differences: Iterable[FileDifference]
) -> tuple[list[CheckedCopyPartition], list[FileDifference]]:
    files: dict[str, list[ManifestFile]] = {partition.partition: [] for partition in manifest.partitions}
    for file in manifest.files:
        if file.folder:
            files.setdefault(file.folder, []).append(file)
    found: dict[str, list[FileDifference]] = {name: [] for name in files}
    beside: list[FileDifference] = []
    for difference in differences:
        found.get(difference.folder, beside).append(difference)
    known = {partition.partition: partition for partition in manifest.partitions}
    return [_row(copy, name, files[name], found[name], known.get(name)) for name in files], beside


def _row(
    copy: str,
    name: str,
    files: Sequence[ManifestFile],
    differences: Sequence[FileDifference],
    known: ManifestPartition | None,
) -> CheckedCopyPartition:
    status, code, reason = UNCHANGED, None, None
    sentences = _sentences(differences)
    if sentences:
        status, code, reason = FAILED, DIFFERS, sentences[0]
    elif known is not None and known.damage is not None:
        reason = f"{known.damage}.  The log was already damaged when it was copied; its files have not changed since"
        status, code = QUARANTINED, CORRUPT
    return CheckedCopyPartition(
        partition=name,
        log_dir=copy,
        status=status,
        reason_code=code,
        reason=reason,
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        files_without_digest=sum(file.sha256 is None for file in files),
        files_that_differ=len(differences),
        problems=sentences,
    )


def _sentences(differences: Sequence[FileDifference]) -> tuple[str, ...]:
    return tuple(f"{difference.name} {difference.what}" for difference in differences[:_SHOWN])


# -------------------------------------------------------------------------------------------------------------- report
COLUMNS: tuple[TableColumn[CheckedCopyPartition], ...] = (
    *name_and_status(),
    number_column("files", lambda row: row.files),
    bytes_column("bytes", lambda row: row.bytes),
)


def print_check(report: CopyCheckReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS)
    for line in _differences(report):
        screen.say(line, style="red")
    for note in report.notes:
        screen.say(note)
    screen.say(_conclusion(report))


def _differences(report: CopyCheckReport) -> Iterator[str]:
    shown = [*report.problems]
    for each in report.partitions:
        shown += each.problems
        if each.status == QUARANTINED:
            yield f"{each.partition}: {each.reason}"
    yield from shown[:_SHOWN]
    left = report.files_that_differ - len(shown[:_SHOWN])
    if left > 0:
        yield f"and {left} more; --json shows up to {_SHOWN} for each partition"


def _conclusion(report: CopyCheckReport) -> str:
    made = f"{report.copy}, made by run {report.run_checked}"
    without = report.files_without_digest
    by_size = f"; {counted(without, 'file')} without a digest (links): only their sizes were compared"
    outcome = (
        f"{counted(report.files_that_differ, 'difference')} from the manifest"
        if report.files_that_differ
        else "equals its manifest"
    )
    read = f"{counted(report.files, 'file')}, {human_bytes(report.bytes_read)} read in {report.seconds:.1f} s"
    return f"{made}: {outcome} ({read}{by_size if without else ''})"
