"""`sediment verify BEFORE AFTER`: check that AFTER is a correct compaction of BEFORE.

1. The driver pairs up the partitions.
2. Tasks compare each pair: the headers of both logs, then records and batches, then bytes and files.
3. The driver makes the reports of all pairs.

The cleaner's code is not used: `verification` defines the rules independently.

Invariant: a partition is CORRECT only if every check was made and found no difference.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sediment.jobs.command_line.declaration import TimeMs, option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.settings.cluster_settings import settings_of_logs
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.live_slots import is_local
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.slots import available_slots
from sediment.jobs.spark.task_pool import TaskResult, run_here, run_on_executors
from sediment.jobs.verifying.pairs import FoundPair, pair_up
from sediment.jobs.verifying.report import COLUMNS, VerificationReport, print_report
from sediment.jobs.verifying.task import compare_pair, failed_pair, of_comparison
from sediment.segment_io.errors import SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.names import by_number, new_run_id
from sediment.segment_io.fs import Fs
from sediment.verification.comparison import Pair, PairSettings
from sediment.verification.report import PairReport

_LITTLE_BYTES = 256 << 20
_PAIR_BYTES = 1 << 20  # comparing this many bytes takes as long as opening the files of a pair
_TABLE_BYTES = 512 << 20


def _with_settings(
    found: Sequence[FoundPair], options: CommonOptions, since_ms: int | None, reencoded: bool
) -> list[Pair]:
    """The settings come from the metadata log in the log directory of BEFORE, or else of AFTER."""
    before, after = (
        settings_of_logs([(side.source.partition, side.source.directory) for side in sides], options.settings, Fs())
        for sides in ([each.before for each in found], [each.after for each in found])
    )
    return [
        Pair(*each, _settings_of(each, one or other or options.settings, options, since_ms, reencoded))
        for each, one, other in zip(found, before, after, strict=True)
    ]


def _settings_of(
    found: FoundPair, settings: Settings, options: CommonOptions, since_ms: int | None, reencoded: bool
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
    # If there is little data, this process makes the comparison, because Spark would take longer to start.
    if not options.asks_for_spark and sum(map(_weight, pairs)) <= _LITTLE_BYTES:
        yield from run_here([replace(pair, slots=available_slots()) for pair in pairs], compare_pair)
        return
    with spark_context(options.master, "sediment verify") as sc:
        group = f"sediment-verify-{uuid.uuid4().hex}"
        # On a cluster, the idle slots can be on other machines.
        # A large partition that would leave CPUs of this machine idle is compared by several threads.
        slots = sc.defaultParallelism if is_local(sc) else 1
        for results in run_on_executors(
            sc,
            with_slots(pairs, slots),
            compare_pair,
            _weight,
            group=group,
            title=titled("compare", lambda pair: pair.name),
            figures=of_comparison,
        ):
            yield from results


def with_slots(pairs: Sequence[Pair], slots: int) -> list[Pair]:
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
                yield failed_pair(each.item, *describe(each.error))
            else:
                yield failed_pair(each.item, "task-failed", str(each.error))
            progress.advance(each.item.readable_bytes)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    since_ms: TimeMs | None = option(
        None,
        "Time of the first compaction, in ms since the epoch, if several compactions lie between BEFORE and AFTER "
        "(default: there was one compaction, at --now-ms).",
    )
    reencoded: bool = option(
        False,
        "Accept batches that `compact --codec` or `reencode` re-encoded: compare their records instead of their "
        "bytes, and list these batches.",
    )


def verify(options: CommonOptions, own: VerifyOptions) -> VerificationReport:
    """Compare the two `log_dirs` of `options`.

    If `options.now_ms` was given, it is the exact time of the cleaning; otherwise, the cleaning may have been earlier.
    If `own.since_ms` is None and several runs of --keep-before used BEFORE, the time of the first of these runs is
    used.  In all other cases, None means a single cleaning.
    """
    if options.other_nodes:
        raise UsageError("verify takes one --config", advice="give the file of the node of BEFORE and AFTER")
    started = time.monotonic()
    since_ms = own.since_ms
    found, reports, mark = pair_up(options, Fs())
    if since_ms is None and mark.is_reused and mark.now_ms is not None:
        since_ms = mark.now_ms
        options.messages().print(
            f"several runs used BEFORE for --keep-before, so --since-ms {since_ms} applies, the time of the first run"
        )
    reports += _reports(_with_settings(found, options, since_ms, own.reencoded), options)
    return VerificationReport(
        run_id=new_run_id(),
        command="verify",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=tuple(sorted(reports, key=lambda report: by_number(report.partition))),
    )


# -------------------------------------------------------------------------------------------------------- command line
@log_command("verify", VerifyOptions, COLUMNS, two_directories=True)
def command(options: CommonOptions, own: VerifyOptions) -> None:
    """Check that AFTER is a correct compaction of BEFORE.

    BEFORE and AFTER are two log directories, or two directories of one partition.  Neither is changed.
    """
    options.conclude(verify(options, own), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is another module.
    from sediment.jobs.verify import command as importable

    importable()
