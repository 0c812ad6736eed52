"""Pairs of `verify`: the partitions that are in both directories, and a report of each that is in only one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sediment.engine.directory.originals.backup_links import BEFORE_OF_FILE
from sediment.engine.directory.originals.before_mark import BeforeMark, fingerprint, read_mark
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.reporting.run_report import SKIPPED
from sediment.jobs.verifying.report import NOT_CHANGED
from sediment.segment_io.errors import NotALogDirectoryError, UsageError
from sediment.segment_io.format.names import CLEANER_FILE, parse_segment_file
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, read_checkpoints, read_offset_checkpoint
from sediment.segment_io.partition.listing import check_segments_are_files
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.sources import Source, find_sources
from sediment.verification.comparison import Side
from sediment.verification.report import CHECKS, WRONG, Difference, PairReport


class FoundPair(NamedTuple):
    name: str
    before: Side
    after: Side


def pair_up(options: CommonOptions, fs: Fs) -> tuple[list[FoundPair], list[PairReport], BeforeMark]:
    """Return the partitions in both directories, a report of each that is in only one, and the mark of --keep-before.

    The mark is empty if no run of --keep-before made BEFORE or its log directory.
    """
    before, after = options.log_dirs
    _check_cleaner_checkpoint(before, after, fs)
    kinds = [_is_partition(path, fs) for path in (before, after)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"one of {before} and {after} is a log directory, and the other is the directory of one partition",
            advice="give two log directories, or two directories of one partition",
        )
    if kinds[0]:
        name = without_links(before).name
        mark = read_mark(without_links(before).parent / BEFORE_OF_FILE, fs) or BeforeMark("")
        if not _selected([name], options):
            return [], [], mark
        return [FoundPair(name, *(_side(find_sources([path], fs)[0], fs) for path in (before, after)))], [], mark
    mark = read_mark(before / BEFORE_OF_FILE, fs) or BeforeMark("")
    sides = [
        {str(source.partition): source for source in sources}
        for sources in (_kept(before, mark, fs), find_sources([after], fs))
    ]
    names = _selected(sorted(sides[0].keys() | sides[1].keys() | mark.partitions.keys()), options)
    checkpoints = [read_checkpoints(path, fs) for path in (before, after)]
    missing = [
        _not_linked(sides[1][name], mark, checkpoints, fs)
        if name in mark.partitions and name not in sides[0] and name in sides[1]
        else _missing(name, sides)
        for name in names
        if name not in sides[0] or name not in sides[1]
    ]
    pairs = [
        FoundPair(name, *(_side(side[name], fs, known) for side, known in zip(sides, checkpoints, strict=True)))
        for name in names
        if name in sides[0] and name in sides[1]
    ]
    return pairs, missing, mark


def _check_cleaner_checkpoint(before: Path, after: Path, fs: Fs) -> None:
    """Check AFTER's cleaner checkpoint if it differs from BEFORE's, because a broker fails on a malformed file."""
    files = [path / CLEANER_FILE for path in (before, after)]
    old, new = (fs.read_bytes(file) if fs.exists(file) else None for file in files)
    if new != old:
        read_offset_checkpoint(fs, files[1])


def _is_partition(path: Path, fs: Fs) -> bool:
    if not fs.is_directory(path):
        raise NotALogDirectoryError(
            "no such directory", path=str(path), advice="give two log directories, or two directories of one partition"
        )
    return any(parse_segment_file(entry.name) for entry in fs.scan(path) if entry.is_file)


def _side(source: Source, fs: Fs, checkpoints: LogDirCheckpoints | None = None) -> Side:
    known = read_checkpoints(source.directory.parent, fs) if checkpoints is None else checkpoints
    check_segments_are_files(source.partition, source.directory, fs)
    return Side(source, live_segments(source, fs), known.of(source.partition))


def _kept(before: Path, mark: BeforeMark, fs: Fs) -> tuple[Source, ...]:
    """Return the partitions of BEFORE; after a run that changed nothing, it contains only the mark of --keep-before."""
    try:
        return find_sources([before], fs)
    except NotALogDirectoryError:
        if not mark.log_dir:
            raise
        return ()


def _selected(names: Sequence[str], options: CommonOptions) -> list[str]:
    if not names:
        raise UsageError(
            "BEFORE and AFTER have no partition to compare", path=str(options.log_dirs[0]), advice="check the paths"
        )
    if not options.allow_empty_selection:
        options.selection.check(names, where=" and ".join(map(str, options.log_dirs)))
    return [name for name in names if options.selection.includes(name)]


def _not_linked(after: Source, mark: BeforeMark, checkpoints: Sequence[LogDirCheckpoints], fs: Fs) -> PairReport:
    """Return the report of a partition that --keep-before did not link; any change since the run is a difference."""
    name = after.directory.name
    old, new = (known.of(after.partition).log_start or 0 for known in checkpoints)
    differences = []
    if new != old:
        differences.append(Difference("log_start", new, f"the log start checkpoint is {new}, but in BEFORE {old}"))
    if str(without_links(after.directory.parent)) != mark.log_dir:
        differences.append(
            Difference(
                "partition",
                None,
                f"BEFORE has no links to this partition; compare BEFORE with {mark.log_dir} to find out whether the "
                "partition changed",
            )
        )
    elif fingerprint(after.directory, fs) != mark.partitions[name]:
        differences.append(Difference("partition", None, "the partition changed, but BEFORE has no links to it"))
    if differences:
        return _wrong(name, None, str(after.directory), differences)
    return PairReport(name, None, str(after.directory), SKIPPED, NOT_CHANGED, "its files are unchanged since the run")


def _missing(name: str, sides: Sequence[Mapping[str, Source]]) -> PairReport:
    before, after = (str(side[name].directory) if name in side else None for side in sides)
    what = "AFTER does not have the partition" if after is None else "BEFORE does not have the partition"
    return _wrong(name, before, after, [Difference("partition", None, what)])


def _wrong(name: str, before: str | None, after: str | None, differences: Sequence[Difference]) -> PairReport:
    counts = Counter(difference.check for difference in differences)
    return PairReport(
        name,
        before,
        after,
        WRONG,
        checks={check: counts[check] or None for check in CHECKS},
        differences=tuple(differences),
    )
