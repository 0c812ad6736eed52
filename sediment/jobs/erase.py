"""`sediment erase LOG_DIR …`: remove records from any log and write evidence of the erasure, or check such evidence.

The module `erasing.erase_run` implements the run, and `erasing.check_evidence` the check.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.erasing.check_evidence import (
    CheckedPartition,
    CheckReport,
    check_directories,
    contradictions,
    print_check,
    read_evidence,
)
from sediment.jobs.erasing.envelope import BadEnvelopeError
from sediment.jobs.erasing.erase_run import Erasure
from sediment.jobs.erasing.options import EraseOptions, EvidenceCheck
from sediment.jobs.erasing.report import COLUMNS, ERASED, EraseReport, EraseRunReport, print_report
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.screen import Screen, View
from sediment.jobs.rewriting.flow import perform
from sediment.jobs.rewriting.run import Run
from sediment.jobs.rewriting.segment_rewriting import destination_of
from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def erase(
    options: CommonOptions,
    own: EraseOptions,
    *,
    confirm: Callable[[EraseRunReport], bool] | None = None,
    stop: threading.Event | None = None,
) -> EraseRunReport:
    """If there is anything to erase, `confirm` is called once, with the report that a dry run would return.

    Setting `stop` ends the run after the group in progress; partitions without a result are reported as failed.

    Raises:
        DeclinedError: `confirm` returned False; no record was changed.
    """
    own.validate(options)
    run = Run[EraseReport]("erase", options, stop, dry_run=own.dry_run, has_secrets=True)
    # An output must not contain records that could not be erased.
    destination = destination_of(run, own, output_keeps_failed=False)
    with run.stack:
        erasure = Erasure(run, own, destination, confirm, _register)
        return erasure.report(perform(run, erasure, destination))


def _register(spark: SparkSession) -> None:
    # Imported late, because the module needs PySpark, and only a run with a condition needs Spark.
    from sediment.jobs.datasource import register

    register(spark)


def check(options: CommonOptions, own: EvidenceCheck) -> CheckReport:
    run = Run[CheckedPartition]("erase", options, None)
    local = [_checked_directory(each) for each in options.named_log_dirs()]
    evidence, problems = None, []
    try:
        evidence = read_evidence(own.file, own.public_key)
        problems = list(contradictions(evidence))
    except BadEnvelopeError as error:
        problems = [str(error)]
    partitions = [] if evidence is None else check_directories(evidence, local, run.fs)
    return CheckReport(
        **run.header(partitions),
        evidence=str(own.file),
        run_checked=None if evidence is None else evidence.run_id,
        complete=None if evidence is None else evidence.complete,
        problems=tuple(problems),
        incomplete=() if evidence is None else evidence.incomplete,
    )


def _checked_directory(named: str) -> Path:
    path = local_directory(named)
    if path is None:
        raise UsageError(
            "--check reads only directories of this machine",
            path=named,
            advice="copy the directory to a local disk, and give the path of the copy",
        )
    return Path(path).absolute()


@log_command("erase", EraseOptions, COLUMNS)
def command(options: CommonOptions, own: EraseOptions) -> None:
    """Erase records from LOG_DIR..., whose broker must be stopped.

    SIGINT or SIGTERM ends the run after the current group of segments is committed.  The run then prints its report and
    exits with status 1.
    """
    if own.evidence_check is not None:
        if any(each is not None for each in (own.keys_file, own.where, own.verdicts)):
            raise UsageError(
                "--check excludes the selection of records", advice="leave out --keys-file, --where and --verdicts"
            )
        options.conclude(check(options, own.evidence_check), print_check)
    is_sure = own.yes or own.dry_run
    if not is_sure and not may_ask():
        raise UsageError(
            "erase asks before it changes anything, but stdin or stderr is not a terminal", advice="give --yes"
        )
    with stop_on_signals() as stop:
        confirm = None if is_sure else partial(_confirmed, stop=stop, view=options.view)
        report = erase(options, own, confirm=confirm, stop=stop)
    options.conclude(report, print_report)


def _confirmed(shown: EraseRunReport, *, stop: threading.Event, view: View) -> bool:
    print_report(shown, Screen(error_console(), view))
    records = sum(report.records_erased for report in shown.partitions)
    partitions = sum(report.status == ERASED for report in shown.partitions)
    return ask_on_terminal(f"Erase {counted(records, 'record')} from {counted(partitions, 'partition')}?", stop)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is a different module.
    from sediment.jobs.erase import command as importable

    importable()
