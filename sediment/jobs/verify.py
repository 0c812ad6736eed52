"""`sediment verify BEFORE AFTER`: check that AFTER is a correct compaction of BEFORE.

    driver    pair up · slices                    · range of each pair  · bytes and files · count and first differences
    tasks                      batches -> segments                        records, batches

The cleaner's code is not used: `verification.cleaned_range` defines the rules again for segments, and
`verification.rules` defines them as queries.  Neither directory is changed or locked; a directory that changes while it
is read is an error.

Invariant: a partition is CORRECT only if every check was made and found no difference.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import fnmatch
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sediment.engine.directory.originals.backup_links import BEFORE_OF_FILE
from sediment.engine.directory.originals.before_mark import BeforeMark, fingerprint, read_mark
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.options import CommonOptions, options_of_two_directories
from sediment.jobs.command_line.progress import stages_of
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, SKIPPED, WRONG
from sediment.jobs.settings.cluster_settings import settings_of_logs
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.spark.session import create_session, plain_session
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.jobs.verification import rules as r
from sediment.jobs.verification.cleaned_range import (
    CleanedRange,
    LogFacts,
    SegmentFacts,
    cleaned_range,
    segment_differences,
)
from sediment.jobs.verification.files import FilesToCheck, check_files
from sediment.jobs.verification.report import (
    CHECKS,
    CORRECT,
    NOT_CHANGED,
    SHOWN_DIFFERENCES,
    Difference,
    PairReport,
    VerificationReport,
    print_report,
)
from sediment.jobs.verification.rows import AFTER, BEFORE, load_aborted, load_batches, load_records
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.format.names import CLEANER_FILE, by_number, new_run_id, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.log_dir_checkpoints import LogDirCheckpoints, read_checkpoints
from sediment.segment_io.partition.partition_directories import check_patterns
from sediment.segment_io.partition.sources import Source, find_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_SMALL_BYTES = 256 << 20
_SHUFFLED_BYTES = 64 << 20
_TINY_BYTES = 16 << 20
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class _Side:
    """One log of a pair, with the files of its segments at the start of the run."""

    source: Source
    segments: tuple[LiveSegment, ...]
    checkpoints: LogDirCheckpoints

    @property
    def size_bytes(self) -> int:
        return sum(segment.ref.log_bytes for segment in self.segments)

    @property
    def readable_bytes(self) -> int:
        """Upper bound of the bytes to read; positions in a segment have 32 bits, so a larger file must be sparse."""
        return sum(min(segment.ref.log_bytes, INT32_MAX) for segment in self.segments)

    def facts(self, found: Mapping[int, Row], first_open: int | None) -> LogFacts:
        """Return the facts of the log from its listing and from `found`, the rows of its segments."""
        return LogFacts(
            tuple(_segment_facts(segment, found.get(segment.base_offset)) for segment in self.segments),
            first_open,
            self.checkpoints.of(self.source.partition),
        )


def _segment_facts(segment: LiveSegment, row: Row | None) -> SegmentFacts:
    size_bytes, modified_ms = segment.ref.log_bytes, segment.ref.mtime_ns // 1_000_000
    if row is None:
        return SegmentFacts(segment.base_offset, size_bytes, modified_ms)
    return SegmentFacts(
        segment.base_offset,
        size_bytes,
        modified_ms,
        row.first_offset,
        row.last_offset,
        row.largest_ms,
        row.disorder,
        row.last_legacy is not None,
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same partition before and after."""

    name: str
    before: _Side
    after: _Side


@dataclass(frozen=True, slots=True)
class _PairFacts:
    """Pair, and the facts of its segments."""

    pair: _Pair
    before: LogFacts
    after: LogFacts
    cleaned: CleanedRange
    records_before: int
    records_after: int


# ------------------------------------------------------------------------------------------------------------- pairing
def _pair_up(options: CommonOptions, fs: Fs) -> tuple[list[_Pair], list[PairReport]]:
    """Return the partitions in both directories, and reports of those in only one.

    Raises:
        UsageError: a path is neither a log directory nor a partition, the two differ, or nothing is selected.
        CorruptCheckpointError: a checkpoint file cannot be read.
    """
    before, after = options.log_dirs
    _check_cleaner_checkpoint(before, after, fs)
    kinds = [_is_partition(path, fs) for path in (before, after)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"{before} and {after} are a log directory and the directory of one partition",
            advice="name two log directories, or two directories of partitions",
        )
    if kinds[0]:
        name = before.resolve().name
        if not _selected([name], options):
            return [], []
        return [_Pair(name, _side(find_sources([before], fs)[0], fs), _side(find_sources([after], fs)[0], fs))], []
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
        _Pair(name, *(_side(side[name], fs, known) for side, known in zip(sides, checkpoints, strict=True)))
        for name in names
        if name in sides[0] and name in sides[1]
    ]
    return pairs, missing


def _check_cleaner_checkpoint(before: Path, after: Path, fs: Fs) -> None:
    """Check a cleaner checkpoint that differs from BEFORE; Sediment treats a malformed one as empty, a broker does not.

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
            "no such directory", path=str(path), advice="name two log directories, or two directories of partitions"
        )
    return any(parse_segment_file(entry.name) for entry in fs.scan(path) if entry.is_file)


def _side(source: Source, fs: Fs, checkpoints: LogDirCheckpoints | None = None) -> _Side:
    known = read_checkpoints(source.directory.parent, fs) if checkpoints is None else checkpoints
    return _Side(source, live_segments(source, fs), known)


def _kept(before: Path, mark: BeforeMark, fs: Fs) -> tuple[Source, ...]:
    """Return the partitions of BEFORE; after a run without changes, it contains only the run's mark."""
    try:
        return find_sources([before], fs)
    except NotALogDirectoryError:
        if not mark.log_dir:
            raise
        return ()


def _selected(names: Sequence[str], options: CommonOptions) -> list[str]:
    """Return the `names` that `--partition` selects.

    Raises:
        UsageError: a pattern matches none of them, or `names` is empty.
    """
    if not names:
        raise UsageError(
            "BEFORE and AFTER have no partition to compare", path=str(options.log_dirs[0]), advice="check the paths"
        )
    if not options.allow_empty_selection:
        check_patterns(options.partitions, names, where=" and ".join(map(str, options.log_dirs)))
    globs = options.partitions or ("*",)
    return [name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]


def _not_linked(after: Source, mark: BeforeMark, checkpoints: Sequence[LogDirCheckpoints], fs: Fs) -> PairReport:
    """Return the report of a partition that --keep-before did not link; it must not have changed since then."""
    name = after.directory.name
    old, new = (known.of(after.partition).log_start or 0 for known in checkpoints)
    differences = []
    if new != old:
        differences.append(Difference("log_start", new, f"the log start checkpoint is {new}, in BEFORE {old}"))
    if str(after.directory.parent.resolve()) != mark.log_dir:
        differences.append(
            Difference(
                "partition",
                None,
                f"BEFORE did not link the partition; compare with {mark.log_dir} to see if it changed",
            )
        )
    elif fingerprint(after.directory, fs) != mark.partitions[name]:
        differences.append(Difference("partition", None, "the partition changed, and BEFORE did not link it"))
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


# ------------------------------------------------------------------------------------------------------------ verifying
def _settings_of(sources: Sequence[tuple[Source, Source]], settings: Settings) -> dict[Source, Settings]:
    """Return the settings of each pair, from the metadata log next to BEFORE's log or else next to AFTER's log."""
    before, after = (
        settings_of_logs([(pair[side].partition, pair[side].directory) for pair in sources], settings, Fs())
        for side in (0, 1)
    )
    return {pair[0]: one or other or settings for pair, one, other in zip(sources, before, after, strict=True)}


_CorruptSegments = Mapping[tuple[int, int], frozenset[int]]
"""Base offsets of segments with unreadable batches, by pair and side."""


class _VerifyRun:
    """Comparison of all pairs in one session."""

    def __init__(
        self,
        pairs: Sequence[_Pair],
        options: CommonOptions,
        spark: SparkSession,
        *,
        since_ms: int | None,
    ) -> None:
        self._pairs = pairs
        self._options = options
        self._spark = spark
        self._since_ms = since_ms
        self._sources = [(pair.before.source, pair.after.source) for pair in pairs]
        self._settings = _settings_of(self._sources, options.settings)

    def reports(self) -> list[PairReport]:
        """Return a report for every pair.

        Raises:
            SourceChangedError: a log changed meanwhile.
        """
        batches = load_batches(self._sources, self._spark).persist()
        decided = r.with_decisions(batches).persist()
        found: DataFrame | None = None
        try:
            rows = r.segment_facts(decided).collect()
            corrupt = {(row.pair, row.side): frozenset(row.segments) for row in _unreadable(batches)}
            facts = self._facts(rows, corrupt)
            errors, on_driver = self._files(facts, corrupt)
            found = self._differences(batches, decided, rows, facts, has_corruption=bool(corrupt)).persist()
            counts, first = _counted(found)
            self._check_unchanged()
        finally:
            for frame in (found, decided, batches):
                if frame is not None:
                    frame.unpersist()
        return [
            _report(
                one,
                on_driver[number],
                counts.get(number, Counter()),
                first.get(number, []),
                errors.get(number),
            )
            for number, one in enumerate(facts)
        ]

    def _facts(self, rows: Sequence[Row], corrupt: _CorruptSegments) -> list[_PairFacts]:
        by_side: dict[tuple[int, int], dict[int, Row]] = {}
        for row in rows:
            by_side.setdefault((row.pair, row.side), {})[row.segment] = row
        return [
            self._facts_of_pair(pair, by_side, number, min(corrupt.get((number, BEFORE), ()), default=None))
            for number, pair in enumerate(self._pairs)
        ]

    def _facts_of_pair(
        self,
        pair: _Pair,
        by_side: Mapping[tuple[int, int], Mapping[int, Row]],
        number: int,
        first_corrupt: int | None,
    ) -> _PairFacts:
        found = [by_side.get((number, side), {}) for side in (BEFORE, AFTER)]
        opened = [
            min((row.first_open for row in rows.values() if row.first_open is not None), default=None) for rows in found
        ]
        if first_corrupt is not None:
            # If a transaction seems to be open, its marker may be in an unreadable batch.
            opened = [None, None]
        before = replace(pair.before.facts(found[0], opened[0]), first_corrupt=first_corrupt)
        after = pair.after.facts(found[1], opened[1])
        config = self._settings[pair.before.source].for_topic(pair.before.source.partition.topic).compaction
        cleaned = cleaned_range(
            before,
            after,
            now_ms=self._options.now_ms,
            min_lag_ms=config.min_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
        )
        counts = [sum(row.records or 0 for row in rows.values()) for rows in found]
        return _PairFacts(pair, before, after, cleaned, *counts)

    def _files(
        self, facts: Sequence[_PairFacts], corrupt: _CorruptSegments
    ) -> tuple[dict[int, Exception], list[list[Difference]]]:
        """Return the errors of pairs whose files are unreadable, and the differences of segments and files by pair."""
        differences = [segment_differences(one.before, one.after, one.cleaned) for one in facts]
        errors: dict[int, Exception] = {}
        items = [
            item
            for number, one in enumerate(facts)
            for item in _files_to_check(
                number, one, corrupt.get((number, AFTER), frozenset()), self._rules(one).idle_since_ms()
            )
        ]
        group = f"sediment-verify-{uuid.uuid4().hex}"
        for results in run_on_executors(
            self._spark.sparkContext, items, _check_pair, lambda item: item.size_bytes, group=group
        ):
            for each in results:
                error = each.error or (each.result if isinstance(each.result, Exception) else None)
                if error is not None:
                    errors[each.item.pair] = error
                elif isinstance(each.result, list):
                    differences[each.item.pair] += each.result
        return errors, differences

    def _differences(
        self,
        batches: DataFrame,
        decided: DataFrame,
        rows: Sequence[Row],
        facts: Sequence[_PairFacts],
        *,
        has_corruption: bool,
    ) -> DataFrame:
        legacy: Counter[int] = Counter()
        for row in rows:
            if row.side == BEFORE and row.last_legacy is not None:
                legacy[row.pair] = max(legacy[row.pair], row.last_legacy + 1)
        rules = r.rules_frame(
            {number: self._rules(one, legacy.get(number, -INT64_MAX)) for number, one in enumerate(facts)},
            self._spark,
        )
        size_bytes = _readable_bytes(self._pairs)
        partitions = max(_slots(self._spark, size_bytes), size_bytes // _SHUFFLED_BYTES)
        self._spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
        has_producers = any(row.of_producers for row in rows)
        frames = [
            r.batch_differences(decided, rules, with_producers=has_producers),
            r.record_differences(
                load_records(self._sources, self._spark),
                decided,
                rules,
                partitions=partitions,
                with_aborted=any(row.aborted for row in rows),
            ),
        ]
        if has_corruption:
            frames.append(r.corruption_differences(batches))
        if has_producers:
            entries = load_aborted([source for _, source in self._sources], self._spark)
            frames.append(r.transaction_index_differences(decided, entries))
        return r.union(frames)

    def _rules(self, one: _PairFacts, legacy_end: int = -INT64_MAX) -> r.PairRules:
        source = one.pair.before.source
        config = self._settings[source].for_topic(source.partition.topic).compaction
        return r.PairRules(
            cleaned=one.cleaned,
            stable_before=one.before.last_stable_offset,
            stable_after=one.after.last_stable_offset,
            legacy_end=legacy_end,
            corrupt_from=one.before.first_corrupt,
            delete_retention_ms=config.delete_retention_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            now_ms=self._options.now_ms,
            now_is_exact=self._options.now_is_given,
            since_ms=self._since_ms,
        )

    def _check_unchanged(self) -> None:
        fs = Fs()
        for side in (side for pair in self._pairs for side in (pair.before, pair.after)):
            if live_segments(side.source, fs) != side.segments:
                raise SourceChangedError(
                    "the log changed while it was compared",
                    partition=str(side.source.partition),
                    path=str(side.source.directory),
                    advice="stop the process that writes to it, or compare a copy",
                )


def _files_to_check(
    number: int, one: _PairFacts, corrupt: frozenset[int], idle_since_ms: int
) -> Iterator[FilesToCheck]:
    before, after = one.pair.before, one.pair.after
    ours = {segment.base_offset for segment in after.segments}
    first_open = one.before.first_open_offset
    yield FilesToCheck(number, before.source, after.source, None, after.size_bytes, corrupt, first_open, idle_since_ms)
    for segment in before.segments:
        if segment.base_offset >= one.cleaned.end and segment.base_offset in ours:
            yield FilesToCheck(number, before.source, after.source, segment.base_offset, 2 * segment.ref.log_bytes)


def _check_pair(files: FilesToCheck, attempt: str) -> list[Difference] | Exception:
    """Return the differences, or the error of this pair."""
    try:
        return check_files(files, attempt)
    except (SedimentError, OSError) as error:
        return error


def _readable_bytes(pairs: Sequence[_Pair]) -> int:
    return sum(pair.before.readable_bytes + pair.after.readable_bytes for pair in pairs)


def _slots(spark: SparkSession, size_bytes: int) -> int:
    """Return the number of tasks of a shuffle: one for tiny data."""
    return 1 if size_bytes < _TINY_BYTES else max(1, int(spark.sparkContext.defaultParallelism))


def _unreadable(batches: DataFrame) -> list[Row]:
    """Return a row for each side of a pair that has unreadable batches, with the `segments` that contain them.

    Raises:
        SedimentError: a log could not be read at all.
    """
    from pyspark.sql import functions as f

    bad = batches.where("not coalesce(valid, false) or corruption is not null")
    rows = (
        bad.groupBy("pair", "side")
        .agg(
            f.collect_set("segment").alias("segments"),
            f.max(f.when(f.col("size").isNull(), f.col("corruption"))).alias("error"),
        )
        .collect()
    )
    for row in rows:
        if row.error is not None:
            raise SedimentError(row.error)
    return rows


def _counted(found: DataFrame) -> tuple[dict[int, Counter[str]], dict[int, list[Difference]]]:
    """Return, for each check of each pair, the number of differences and the first ones; few rows in any case."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    counts: dict[int, Counter[str]] = {}
    first: dict[int, list[Difference]] = {}
    for row in found.groupBy("pair", "check").count().collect():
        counts.setdefault(row.pair, Counter())[row.check] = row["count"]
    if counts:
        by_check = Window.partitionBy("pair", "check").orderBy("offset", "what")
        numbered = found.withColumn("number", f.row_number().over(by_check))
        for row in numbered.where(f.col("number") <= SHOWN_DIFFERENCES).collect():
            first.setdefault(row.pair, []).append(Difference(row.check, row.offset, row.what))
    return counts, first


def _report(
    one: _PairFacts,
    on_driver: Sequence[Difference],
    counts: Counter[str],
    first: Sequence[Difference],
    error: Exception | None,
) -> PairReport:
    total = counts + Counter(difference.check for difference in on_driver)
    shown = sorted(
        [*on_driver, *first],
        key=lambda d: (list(CHECKS).index(d.check), -1 if d.offset is None else d.offset, d.what),
    )
    code, reason = describe(error) if isinstance(error, SedimentError | OSError) else (None, None)
    if error is not None and reason is None:
        code, reason = "task-failed", str(error)
    return PairReport(
        partition=one.pair.name,
        before=str(one.pair.before.source.directory),
        after=str(one.pair.after.source.directory),
        status=FAILED if error is not None else WRONG if total else CORRECT,
        reason_code=code,
        reason=reason,
        first_dirty_offset=one.cleaned.first_dirty,
        first_uncleanable_offset=one.cleaned.first_uncleanable,
        next_dirty_offset=one.after.checkpoints.first_dirty,
        log_end_offset=one.after.log_end_offset,
        records_before=one.records_before,
        records_after=one.records_after,
        bytes_before=one.pair.before.size_bytes,
        bytes_after=one.pair.after.size_bytes,
        checks={check: _count(check, total, one, error) for check in CHECKS},
        differences=tuple(_first_of_each(shown)),
    )


_OF_CLAIMS = frozenset({"superseded", "aborted"})


def _count(check: str, total: Counter[str], one: _PairFacts, error: Exception | None) -> int | None:
    if error is not None or (check in _OF_CLAIMS and not one.cleaned.is_claimed):
        return total[check] or None
    return total[check]


def _first_of_each(differences: Sequence[Difference]) -> Iterator[Difference]:
    shown: Counter[str] = Counter()
    for difference in differences:
        shown[difference.check] += 1
        if shown[difference.check] <= SHOWN_DIFFERENCES:
            yield difference


@contextmanager
def _quick_session(master: str | None, app_name: str, given: SparkSession | None) -> Iterator[SparkSession]:
    with plain_session(master, app_name, _for_queries, given) as spark:
        yield spark


_FOR_QUERIES = {
    "spark.python.unix.domain.socket.enabled": "false",  # or DataFrames' Python processes end with a traceback
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # or each call on a column makes eight more to the JVM
}


def _for_queries(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, value) for name, value in _FOR_QUERIES.items()}


@contextmanager
def _session(options: CommonOptions, pairs: Sequence[_Pair]) -> Iterator[SparkSession]:
    """Yield a session tuned for fast start-up if there is little data, or for fast reading if there is a lot."""
    size_bytes = _readable_bytes(pairs)
    start = _quick_session if size_bytes <= _SMALL_BYTES else create_session
    with start(options.master, "sediment verify", options.spark) as spark:
        wanted = {_SHUFFLE_PARTITIONS: str(_slots(spark, size_bytes))}
        if size_bytes <= _SMALL_BYTES:
            wanted["spark.sql.codegen.wholeStage"] = "false"  # compiling takes longer than running
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield spark


def verify(options: CommonOptions, *, since_ms: int | None) -> VerificationReport:
    """Compare the two `log_dirs` of `options`.

    `now_ms`, if it is given, is the clock of the cleaning, not a later time.  `since_ms`: the clock of the first of
    several cleanings; None: there was one.

    Raises:
        UsageError: the directories cannot be compared.
        SedimentError: a directory cannot be read, or changed meanwhile.
    """
    started = time.monotonic()
    pairs, reports = _pair_up(options, Fs())
    if pairs:
        with _session(options, pairs) as spark, stages_of(spark.sparkContext, options.messages()):
            reports += _VerifyRun(pairs, options, spark, since_ms=since_ms).reports()
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
@click.option(
    "--since-ms",
    type=click.IntRange(min=0, max=INT64_MAX),
    help="Accept several cleanings, the first at this time in ms. (default: one cleaning, at --now-ms if given).",
)
def command(options: CommonOptions, since_ms: int | None) -> None:
    """Check that AFTER is a correct compaction of BEFORE.

    Both are log directories, or both are directories of one partition.  Neither is changed.
    """
    options.conclude(verify(options, since_ms=since_ms), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is another module.
    from sediment.jobs.verify import command as importable

    importable()
