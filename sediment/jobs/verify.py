"""`sediment verify BEFORE AFTER`: check that AFTER is a correct compaction of BEFORE.

1. The driver pairs up the partitions.
2. Tasks compare each pair: the headers of both logs, then records and batches, then bytes and files.
3. The driver makes the reports of all pairs.

One task compares a partition; small partitions share a task.  A large partition that would leave CPUs of this machine
idle is compared by several threads.  If there is little data, this process makes the comparison, because Spark would
take longer to start.

The cleaner's code is not used: `verification` defines the rules independently.  Neither directory is changed or locked;
a directory that changes while it is read is an error.

Invariant: a partition is CORRECT only if every check was made and found no difference.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from sediment.engine.directory.originals.backup_links import BEFORE_OF_FILE
from sediment.engine.directory.originals.before_mark import BeforeMark, fingerprint, read_mark
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.options import CommonOptions, options_of_two_directories, screen_options
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import SKIPPED, WRONG
from sediment.jobs.reporting.verify_checks import CHECKS
from sediment.jobs.settings.cluster_settings import settings_of_logs
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.slots import available_slots
from sediment.jobs.spark.task_pool import TaskResult, run_here, run_on_executors
from sediment.jobs.verification.comparison import Pair, PairSettings, Side, compare, failed
from sediment.jobs.verification.report import (
    COLUMNS,
    NOT_CHANGED,
    Difference,
    PairReport,
    VerificationReport,
    print_report,
)
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import CLEANER_FILE, by_number, new_run_id, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, read_checkpoints, read_offset_checkpoint
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.sources import Source, find_sources

_LITTLE_BYTES = 256 << 20
_PAIR_BYTES = 1 << 20  # comparing this many bytes takes as long as opening the files of a pair
_TABLE_BYTES = 512 << 20


class _Found(NamedTuple):
    """The same partition before and after."""

    name: str
    before: Side
    after: Side


# ------------------------------------------------------------------------------------------------------------- pairing
def _pair_up(options: CommonOptions, fs: Fs) -> tuple[list[_Found], list[PairReport], BeforeMark]:
    """Return the partitions in both directories, a report of each that is in only one, and the mark of --keep-before.

    The mark is empty if no run of --keep-before made BEFORE or its log directory.

    Raises:
        UsageError: a path is neither a log directory nor a partition, BEFORE and AFTER are of different kinds, or
            nothing is selected.
        CorruptCheckpointError: a checkpoint file cannot be read.
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
        name = before.resolve().name
        mark = read_mark(before.resolve().parent / BEFORE_OF_FILE, fs) or BeforeMark("")
        if not _selected([name], options):
            return [], [], mark
        return [_Found(name, *(_side(find_sources([path], fs)[0], fs) for path in (before, after)))], [], mark
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
        _Found(name, *(_side(side[name], fs, known) for side, known in zip(sides, checkpoints, strict=True)))
        for name in names
        if name in sides[0] and name in sides[1]
    ]
    return pairs, missing, mark


def _check_cleaner_checkpoint(before: Path, after: Path, fs: Fs) -> None:
    """Check AFTER's cleaner checkpoint if it differs from BEFORE's, because a broker fails on a malformed file.

    Raises:
        CorruptCheckpointError: the file is malformed.
    """
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
    """Return the `names` that `--partition` selects.

    Raises:
        UsageError: a pattern matches none of the names, or `names` is empty.
    """
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
    if str(after.directory.parent.resolve()) != mark.log_dir:
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


# ----------------------------------------------------------------------------------------------------------- comparing
def _with_settings(
    found: Sequence[_Found], options: CommonOptions, since_ms: int | None, reencoded: bool
) -> list[Pair]:
    """Return the pairs with the settings of their topics.

    The settings come from the metadata log in the log directory of BEFORE, or else of AFTER.
    """
    before, after = (
        settings_of_logs([(side.source.partition, side.source.directory) for side in sides], options.settings, Fs())
        for sides in ([each.before for each in found], [each.after for each in found])
    )
    return [
        Pair(*each, _settings_of(each, one or other or options.settings, options, since_ms, reencoded))
        for each, one, other in zip(found, before, after, strict=True)
    ]


def _settings_of(
    found: _Found, settings: Settings, options: CommonOptions, since_ms: int | None, reencoded: bool
) -> PairSettings:
    config = settings.for_topic(found.before.source.partition.topic).compaction
    return PairSettings(
        now_ms=options.now_ms,
        now_is_exact=options.now_is_given,
        since_ms=since_ms,
        min_lag_ms=config.min_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        table_bytes=min(config.task_memory_bytes, _TABLE_BYTES),
        may_be_reencoded=reencoded,
    )


_Result = TaskResult[Pair, PairReport | SourceChangedError]


def _weight(pair: Pair) -> int:
    return pair.readable_bytes + _PAIR_BYTES


def _results(pairs: Sequence[Pair], options: CommonOptions) -> Iterator[_Result]:
    """Compare the pairs on Spark, or in this process if there is little data and no option asks for Spark."""
    if not options.asks_for_spark and sum(map(_weight, pairs)) <= _LITTLE_BYTES:
        yield from run_here([replace(pair, slots=available_slots()) for pair in pairs], compare)
        return
    with spark_context(options.master, "sediment verify") as sc:
        group = f"sediment-verify-{uuid.uuid4().hex}"
        # On a cluster, the idle slots can be on other machines.
        slots = sc.defaultParallelism if re.match(r"local(\[|$)", str(sc.master)) else 1
        for results in run_on_executors(sc, with_slots(pairs, slots), compare, _weight, group=group):
            yield from results


def with_slots(pairs: Sequence[Pair], slots: int) -> list[Pair]:
    """Return the pairs, each with its share of the `slots` by weight, at least 1."""
    total = sum(map(_weight, pairs))
    return [replace(pair, slots=max(1, round(slots * _weight(pair) / total))) for pair in pairs]


def _reports(pairs: Sequence[Pair], options: CommonOptions) -> Iterator[PairReport]:
    """Yield the report of every pair.

    Raises:
        SourceChangedError: a log changed during the comparison.
    """
    total_bytes = sum(pair.readable_bytes for pair in pairs)
    with Progress(options.messages(), len(pairs), total_bytes, phase="comparing") as progress:
        for each in _results(pairs, options):
            if isinstance(each.result, SourceChangedError):
                raise each.result
            if each.result is not None:
                yield each.result
            elif isinstance(each.error, SedimentError | OSError):
                yield failed(each.item, *describe(each.error))
            else:
                yield failed(each.item, "task-failed", str(each.error))
            progress.advance(each.item.readable_bytes)


def verify(options: CommonOptions, *, since_ms: int | None, reencoded: bool = False) -> VerificationReport:
    """Compare the two `log_dirs` of `options`.

    If `options.now_ms` was given, it is the exact time of the cleaning; otherwise, the cleaning may have been earlier.
    `since_ms` is the time of the first of several cleanings.  If `since_ms` is None and several runs of --keep-before
    used BEFORE, the time of the first of these runs is used.  In all other cases, None means a single cleaning.
    With `reencoded`, batches may have another codec or size.

    Raises:
        UsageError: the directories cannot be compared.
        SedimentError: a directory cannot be read, or changed during the comparison.
    """
    if options.other_nodes:
        raise UsageError("verify takes one --config", advice="give the file of the node of BEFORE and AFTER")
    started = time.monotonic()
    found, reports, mark = _pair_up(options, Fs())
    if since_ms is None and mark.is_reused and mark.now_ms is not None:
        since_ms = mark.now_ms
        options.messages().print(
            f"several runs used BEFORE for --keep-before, so --since-ms {since_ms} applies, the time of the first run"
        )
    reports += _reports(_with_settings(found, options, since_ms, reencoded), options)
    return VerificationReport(
        run_id=new_run_id(),
        command="verify",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=tuple(sorted(reports, key=lambda report: by_number(report.partition))),
    )


# -------------------------------------------------------------------------------------------------------- command line
@click.command("verify", cls=ConfiguredCommand)
@options_of_two_directories
@screen_options(COLUMNS)
@click.option(
    "--since-ms",
    type=click.IntRange(min=0, max=INT64_MAX),
    help="Time of the first compaction, in ms since the epoch, if several compactions lie between BEFORE and AFTER "
    "(default: there was one compaction, at --now-ms).",
)
@click.option(
    "--reencoded",
    is_flag=True,
    help="Accept batches that `compact --codec` or `reencode` re-encoded: compare their records instead of their "
    "bytes, and list these batches.",
)
def command(options: CommonOptions, since_ms: int | None, reencoded: bool) -> None:
    """Check that AFTER is a correct compaction of BEFORE.

    BEFORE and AFTER are two log directories, or two directories of one partition.  Neither is changed.
    """
    options.conclude(verify(options, since_ms=since_ms, reencoded=reencoded), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is another module.
    from sediment.jobs.verify import command as importable

    importable()
