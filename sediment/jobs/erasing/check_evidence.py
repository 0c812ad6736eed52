"""Check of evidence: the signature, the figures in the document, and the files of log directories.

    signature     the key signed the type and the payload
    figures       the conclusions of the document follow from its lists
    files         every segment is unchanged since the run, and no other file could contain erased records

Invariant: nothing is written, no lock is taken, and no record is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from sediment.jobs.erasing.envelope import BadEnvelopeError, load_public_key, verified
from sediment.jobs.erasing.erasure import FileDigest, file_digest
from sediment.jobs.erasing.evidence import (
    DONE,
    KIND,
    SCHEMA,
    PartitionEvidence,
    SegmentEvidence,
    why_incomplete,
)
from sediment.jobs.erasing.places import Place
from sediment.jobs.process.input_files import MOST_LIST_BYTES, read_input_file
from sediment.jobs.reporting.columns import TableColumn, name_and_status, number_column
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, SKIPPED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen, named
from sediment.segment_io.errors import PartitionFailure, SedimentError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    META_PROPERTIES_FILE,
    DirectoryState,
    SegmentFileKind,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.partition.listing import list_log, segments_without_file
from sediment.verification.report import WRONG

VERIFIED = "verified"
BAD_EVIDENCE = "bad-evidence"
DIFFERS = "differs"

_THREADS = 4
_IN_THE_WAY = (DirectoryState.DELETE, DirectoryState.STRAY, DirectoryState.FUTURE)


@dataclass(frozen=True, slots=True)
class CheckedPartition(PartitionOutcome):
    """Result of one partition of the evidence; `notes` are harmless changes since the run."""

    files: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport(RunReport[CheckedPartition]):
    """Report of `erase --check`.

    `run_checked` is the run that wrote the file `evidence`; `complete` is True if the document claims a complete
    erasure.  Both fields are None if the signature is bad.  `problems` are the problems of the document itself.
    """

    row_type: ClassVar[type] = CheckedPartition

    evidence: str
    run_checked: str | None
    complete: bool | None
    problems: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)
    incomplete: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Return the partitions that differ, and the problems of the document."""
        of_document = [PartitionFailure(self.evidence, None, BAD_EVIDENCE, problem) for problem in self.problems]
        return (*of_document, *RunReport.failures(self))


@dataclass(frozen=True, slots=True)
class Evidence:
    run_id: str
    complete: bool
    incomplete: tuple[str, ...]
    log_dirs: tuple[Mapping[str, Any], ...]
    partitions: tuple[PartitionEvidence, ...]
    not_reached: tuple[Place, ...]


# -------------------------------------------------------------------------------------------------------- the document
def read_evidence(file: Path, public_key: Path) -> Evidence:
    key = load_public_key(public_key)
    content = read_input_file(file, MOST_LIST_BYTES, "the evidence", advice="name a file of --evidence")
    document = verified(content, key)
    try:
        if (document["kind"], document["schema"]) != (KIND, SCHEMA):
            raise BadEnvelopeError("the payload is not evidence of an erasure")
        return Evidence(
            _typed(document["run_id"], str),
            document["complete"] is True,
            _typed(document["incomplete"], tuple[str, ...]),
            tuple(map(_log_dir, document["log_dirs"])),
            tuple(map(_partition, document["partitions"])),
            _typed(document["not_reached"], tuple[Place, ...]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadEnvelopeError("the payload lacks a part of evidence") from error


def _log_dir(given: Mapping[str, Any]) -> Mapping[str, Any]:
    path = _typed(given["path"], str)
    if "\0" in path:
        raise ValueError(path)
    os.fsencode(path)  # raises ValueError for a text that is no path
    return {"path": path, "directory_id": _typed(given["directory_id"], str | None)}


def _partition(given: Any) -> PartitionEvidence:
    parsed: PartitionEvidence = _typed(given, PartitionEvidence)
    parse_partition_directory(parsed.partition)
    for file in (file for segment in parsed.segments for file in (*segment.before, *segment.after)):
        if parse_segment_file(file.name) is None:
            raise ValueError(file.name)
    return parsed


def _typed(value: Any, hint: Any) -> Any:
    inner = get_args(hint)
    if get_origin(hint) is UnionType:
        return None if value is None else _typed(value, next(each for each in inner if each is not NoneType))
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TypeError(hint)
        return tuple(_typed(each, inner[0]) for each in value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise TypeError(hint)
        return hint(**{name: _typed(value[name], each) for name, each in hints.items()})
    if type(value) is not hint:
        raise TypeError(hint)
    if hint is int and not 0 <= value <= INT64_MAX:
        raise ValueError(value)
    return value


def contradictions(evidence: Evidence) -> Iterator[str]:
    reasons = why_incomplete(evidence.partitions, evidence.not_reached)
    if evidence.complete and reasons:
        yield f"the evidence says that it is complete, but {reasons[0]}"
    if sorted(evidence.incomplete) != sorted(reasons):
        yield "the reasons in `incomplete` differ from those that the partitions and places of the evidence give"
    names = [(each.log_dir, each.partition) for each in evidence.partitions]
    if len(set(names)) < len(names):
        yield "a partition is listed twice"
    for each in evidence.partitions:
        if each.status in DONE:
            yield from _contradictions_of(each)


def _contradictions_of(each: PartitionEvidence) -> Iterator[str]:
    where = f"{each.partition} in {each.log_dir}"
    if not each.segments:
        yield f"{where} is {each.status}, but none of its segments is listed"
    bases = [segment.base_offset for segment in each.segments]
    if bases != sorted(set(bases)):
        yield f"the segments of {where} do not ascend"
    if each.removed > each.matched:
        yield f"{where} has more changed records than matching ones"
    if sum(segment.removed for segment in each.segments) != each.removed:
        yield f"the number of changed records of {where} differs from the sum over its segments"
    if sum(segment.records for segment in each.segments) != each.records_after:
        yield f"the number of records in the second scan of {where} differs from the sum over its segments"
    if sum(segment.matches for segment in each.segments) > each.matches_after:
        yield f"the number of matching records in the second scan of {where} is below the sum over its segments"
    for segment in each.segments:
        changed = segment.rewritten and _logs(segment.before) != _logs(segment.after)
        if bool(segment.removed) != changed:
            yield (
                f"segment {segment.base_offset} of {where} has changed records and the same log, "
                "or no changed records and a different log"
            )


def _logs(files: Iterable[FileDigest]) -> list[str]:
    return [file.sha256 for file in files if file.name.endswith(SegmentFileKind.LOG)]


# --------------------------------------------------------------------------------------------------------- directories
def check_directories(evidence: Evidence, log_dirs: Sequence[Path], fs: Fs) -> list[CheckedPartition]:
    place_of = {str(_recorded(log_dir, evidence, fs)["path"]): log_dir for log_dir in log_dirs}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sediment-check") as pool:
        return list(
            pool.map(lambda each: _checked(each, place_of.get(each.log_dir), evidence, fs), evidence.partitions)
        )


def _recorded(log_dir: Path, evidence: Evidence, fs: Fs) -> Mapping[str, Any]:
    """Return the entry of the log directory; an entry with an id is compared by id, and one without an id by path."""
    meta = read_meta_properties(fs, log_dir / META_PROPERTIES_FILE) if fs.is_directory(log_dir) else None
    own_id = None if meta is None else meta.directory_id
    for entry in evidence.log_dirs:
        recorded_id = entry["directory_id"]
        is_it = (
            without_links(Path(entry["path"])) == without_links(log_dir)
            if recorded_id is None
            else recorded_id == own_id
        )
        if is_it:
            return entry
    raise UsageError(
        "the evidence is not about this directory",
        path=str(log_dir),
        advice=f"name one of {', '.join(str(entry['path']) for entry in evidence.log_dirs)}",
    )


def _checked(each: PartitionEvidence, log_dir: Path | None, evidence: Evidence, fs: Fs) -> CheckedPartition:
    def result(status: str, code: str | None = None, reason: str | None = None, **more: Any) -> CheckedPartition:
        return CheckedPartition(each.partition, each.log_dir, status, code, reason, **more)

    if each.status not in DONE:
        return result(SKIPPED, each.status, "the evidence does not say that the records of this partition are erased")
    if log_dir is None:
        return result(SKIPPED, "not-given", "no LOG_DIR contains this partition, so its files were not checked")
    check = _PartitionCheck(each, log_dir, evidence, fs)
    try:
        check.run()
    except (SedimentError, OSError) as error:
        check.problems.append(f"the files cannot be read: {error}")
    more: dict[str, Any] = {"files": check.files, "problems": tuple(check.problems), "notes": tuple(check.notes)}
    if check.problems:
        return result(WRONG, DIFFERS, check.problems[0], **more)
    return result(VERIFIED, **more)


class _PartitionCheck:
    def __init__(self, evidence: PartitionEvidence, log_dir: Path, document: Evidence, fs: Fs) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.files = 0
        self._evidence = evidence
        self._log_dir = log_dir
        self._directory = log_dir / evidence.partition
        self._named = {Path(place.path).name for place in document.not_reached if place.path is not None}
        self._fs = fs

    def run(self) -> None:
        if not self._evidence.segments:
            self.problems.append("none of its segments is listed")
            return
        if not self._fs.is_directory(self._directory):
            self.problems.append("the partition is gone")
            return
        partition, _ = parse_partition_directory(self._evidence.partition)
        listing = list_log(partition, self._directory, self._fs)
        bases = [segment.base_offset for segment in listing.segments]
        self._check_bases(bases)
        last = self._evidence.segments[-1].base_offset
        for segment in self._evidence.segments:
            if segment.base_offset in bases:
                self._check_segment(segment, is_last=segment.base_offset == last)
        for name in segments_without_file(self._directory, self._fs):
            self.problems.append(f"{name} is not a regular file, or its link is dangling, so it cannot be read")
        for leftover in listing.leftovers:
            if leftover.name not in self._named:
                self.problems.append(f"{leftover.name} may contain erased records, and the evidence does not name it")
        for entry in self._fs.scan(self._log_dir):
            if entry.is_directory and entry.name not in self._named and self._is_in_the_way(entry.name):
                self.problems.append(f"{entry.name} may contain erased records, and the evidence does not name it")

    def _is_in_the_way(self, name: str) -> bool:
        try:
            partition, state = parse_partition_directory(name)
        except UsageError:
            return False
        return state in _IN_THE_WAY and str(partition) == self._evidence.partition

    def _check_bases(self, bases: Sequence[int]) -> None:
        known = [segment.base_offset for segment in self._evidence.segments]
        for base in bases:
            # After the erasure, a running broker may append records after the last segment in the evidence, and
            # retention may delete the first segments.  Both changes are notes, not problems.
            if base not in known and base > known[-1]:
                self.notes.append(f"segment {base} is newer than the evidence")
            elif base not in known:
                self.problems.append(f"segment {base} did not exist after the run")
        gone = [base for base in known if base not in bases]
        first = bases[0] if bases else known[-1] + 1
        for base in gone:
            if base < first:
                self.notes.append(f"segment {base} was deleted after the run")
            else:
                self.problems.append(f"segment {base} is gone")

    def _check_segment(self, segment: SegmentEvidence, *, is_last: bool) -> None:
        names = {file.name for file in segment.after}
        if segment_file_name(segment.base_offset, SegmentFileKind.LOG) not in names:
            self.problems.append(f"the evidence has no digest of the log of segment {segment.base_offset}")
        for file in segment.after:
            is_log = file.name.endswith(SegmentFileKind.LOG)
            path = self._directory / Path(file.name).name
            if is_last and not is_log:
                continue  # a broker changes the indexes of the active segment at every start
            entry = self._fs.entry(path)
            if entry is None:
                self.problems.append(f"{file.name} is gone")
                continue
            if is_last and entry.size_bytes > file.size_bytes:
                self.notes.append(
                    f"{file.name} has grown since the run; its first {file.size_bytes} bytes were checked"
                )
            found = file_digest(path, self._fs, file.size_bytes if is_last else None)
            self.files += 1
            if (found.size_bytes, found.sha256) != (file.size_bytes, file.sha256):
                self.problems.append(f"{file.name} differs from the file that the evidence describes")


# -------------------------------------------------------------------------------------------------------------- report
COLUMNS: tuple[TableColumn[CheckedPartition], ...] = (
    *name_and_status(),
    number_column("files", lambda row: row.files),
)


def print_check(report: CheckReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS)
    for problem in report.problems:
        screen.say(f"{report.evidence}: {problem}", style="red")
    screen.failures(
        ((each.partition, problem) for each in report.partitions for problem in each.problems), noun="problem"
    )
    notes: dict[str, list[str]] = {}
    for each in report.partitions:
        for note in each.notes:
            notes.setdefault(note, []).append(each.partition)
    for note, partitions in notes.items():
        screen.say(f"{named(partitions)}: {note}")
    screen.say(_conclusion(report))


def _conclusion(report: CheckReport) -> str:
    if report.run_checked is None:
        return "the evidence proves nothing"
    checked = sum(partition.status == VERIFIED for partition in report.partitions)
    says = "complete" if report.complete else f"incomplete: {'; '.join(report.incomplete)}"
    problems = len(report.failures())
    found = f", {counted(problems, 'problem')}" if problems else ""
    return (
        f"the signature of run {report.run_checked} is good; {counted(checked, 'partition')} verified{found}; "
        f"the evidence says that it is {says}"
    )
