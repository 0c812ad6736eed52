"""Task of `verify`: the comparison of one pair."""

from __future__ import annotations

from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.errors import SedimentError, SourceChangedError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.live_segments import live_segments
from sediment.verification.comparison import Pair, compare
from sediment.verification.report import CHECKS, PairReport


def compare_pair(pair: Pair, _attempt: str) -> PairReport | SourceChangedError:
    try:
        report = compare(pair)
    except (SedimentError, OSError) as error:
        report = failed_pair(pair, *describe(error))
    fs = Fs()
    for side in (pair.before, pair.after):
        if live_segments(side.source, fs) != side.segments:
            return SourceChangedError(
                "the log changed while it was compared",
                partition=str(side.source.partition),
                path=str(side.source.directory),
                advice="stop the process that writes to the log, or compare a copy",
            )
    return report


def of_comparison(pair: Pair, result: PairReport | SourceChangedError) -> Figures:
    if isinstance(result, SourceChangedError):
        return Figures()
    return Figures(bytes_read=pair.readable_bytes, records_read=result.records_before + result.records_after)


def failed_pair(pair: Pair, code: str | None, reason: str | None) -> PairReport:
    return PairReport(
        partition=pair.name,
        before=str(pair.before.source.directory),
        after=str(pair.after.source.directory),
        status=FAILED,
        reason_code=code,
        reason=reason,
        bytes_before=pair.before.size_bytes,
        bytes_after=pair.after.size_bytes,
        checks=dict.fromkeys(CHECKS),
    )
