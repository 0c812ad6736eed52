"""`sediment erase LOG_DIR …`: remove records from any log and write evidence of the erasure, or check such evidence.

The module `erasing.erase_run` implements the run, and `erasing.check_evidence` the check.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.key_formats import KEY_FORMATS, TEXT
from sediment.jobs.command_line.options import CommonOptions, HiddenValueOption, common_options, screen_options
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.erasing.check_evidence import (
    CheckReport,
    check_directories,
    contradictions,
    print_check,
    read_evidence,
)
from sediment.jobs.erasing.envelope import BadEnvelopeError
from sediment.jobs.erasing.erase_run import EraseRun
from sediment.jobs.erasing.json_path_keys import JSON_PATH
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.erasing.report import COLUMNS, ERASED, EraseRunReport, print_report
from sediment.jobs.erasing.verdict_table import (
    ACTIONS,
)
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import in_order
from sediment.jobs.reporting.screen import Screen, View
from sediment.jobs.rewriting.options import rewrite_options
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def erase(
    options: CommonOptions,
    own: EraseOptions,
    *,
    confirm: Callable[[EraseRunReport], bool] | None = None,
    stop: threading.Event | None = None,
) -> EraseRunReport:
    """Erase the records that `own` selects from the selected partitions of `options.log_dirs`.

    If there is anything to erase, `confirm` is called once, with the report that a dry run would return.  Setting
    `stop` ends the run after the group in progress; partitions without a result are reported as failed.

    Raises:
        UsageError: a directory, a setting or a combination of options is wrong; nothing was changed.
        DeclinedError: `confirm` returned False; no record was changed.
        UncleanDirectoryError: the broker did not stop cleanly; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
    """
    own.validate(options)
    with ExitStack() as stack:
        run = EraseRun(options, own, stop or threading.Event(), stack, confirm, _register)
        return run.report(run.perform())


def _register(spark: SparkSession) -> None:
    # Imported late, because the module needs PySpark, and only a run with a condition needs Spark.
    from sediment.jobs.datasource import register

    register(spark)


def check(options: CommonOptions, file: Path, public_key: Path) -> CheckReport:
    """Check the evidence in `file`, and compare the log directories of `options` with this evidence.

    Raises:
        UsageError: the file or the key cannot be read, or a directory is not on this machine or not in the evidence.
    """
    started = time.monotonic()
    local = [_checked_directory(each) for each in options.named_log_dirs()]
    evidence, problems = None, []
    try:
        evidence = read_evidence(file, public_key)
        problems = list(contradictions(evidence))
    except BadEnvelopeError as error:
        problems = [str(error)]
    partitions = [] if evidence is None else check_directories(evidence, local, Fs())
    return CheckReport(
        run_id=new_run_id(),
        command="erase",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=in_order(partitions),
        evidence=str(file),
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


def perform(
    options: CommonOptions,
    *,
    stop: threading.Event,
    confirm: Callable[[EraseRunReport], bool] | None = None,
    keep_originals: Path | None,
    checked: Path | None,
    public_key: Path | None,
    **own: Any,
) -> EraseRunReport | CheckReport:
    """Parse the options of the command, then call `erase` or `check`."""
    if (checked is None) != (public_key is None):
        raise UsageError("--check and --public-key go together", advice="give both or neither")
    if checked is not None and public_key is not None:
        if any(own[name] is not None for name in ("keys_file", "where", "verdicts")):
            raise UsageError(
                "--check excludes the selection of records", advice="leave out --keys-file, --where and --verdicts"
            )
        return check(options, checked, public_key)
    return erase(options, EraseOptions(keep_originals=keep_originals, **own), confirm=confirm, stop=stop)


@click.command("erase", cls=ConfiguredCommand)
@common_options
@screen_options(COLUMNS)
@click.option(
    "--keys-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Erase every record whose key is in FILE, which has one key per line.",
)
@click.option(
    "--key-format",
    type=click.Choice((*KEY_FORMATS, JSON_PATH)),
    default=TEXT,
    show_default=True,
    help="Format of the keys in --keys-file.  json-path: each line is PATH=VALUE, such as $.customer.id=17; it "
    "selects the JSON keys whose value at PATH is VALUE.",
)
@click.option(
    "--where",
    cls=HiddenValueOption,
    metavar="SQL",
    help="Erase the records for which this Spark SQL condition on the table `records` is true; @FILE reads the "
    "condition from FILE.",
)
@click.option(
    "--verdicts",
    metavar="TABLE",
    help="Erase the records that TABLE lists (Parquet, Delta or CSV; columns topic, partition, offset, and optionally "
    "key, action and value).",
)
@click.option(
    "--action",
    type=click.Choice(ACTIONS),
    help="drop: remove the record.  tombstone: set its value to null.  replace: set its value to the bytes in "
    "--replacement.  Default: tombstone in compacted topics, drop in others.",
)
@click.option(
    "--replacement",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --action replace: read the bytes of the new value from FILE.",
)
@click.option(
    "--all-versions",
    is_flag=True,
    help="In compacted topics, also drop the older records with the same key as a dropped record.",
)
@click.option(
    "--tombstones-out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the keys that got a tombstone to FILE, so that you can later produce tombstones for these keys to the "
    "leader.",
)
@click.option(
    "--suppress-out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Before erasing, add HMACs of the keys in --keys-file to the suppression list FILE, which "
    "`restore --suppress` and `clone --suppress` read.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="After the run, scan everything again, and write signed evidence of the erasure to FILE; also write an "
    "HTML page next to FILE.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read a secret from FILE.  --evidence and --suppress-out write keys and conditions only as HMACs under this "
    "secret.",
)
@click.option(
    "--signing-key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Sign the evidence with this private Ed25519 key in PEM.",
)
@click.option(
    "--check",
    "checked",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Erase nothing; check the signature of the evidence in FILE, and compare LOG_DIR... with the evidence.",
)
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --check: check the signature with this public Ed25519 key in PEM.",
)
@rewrite_options
@click.option("--yes", is_flag=True, help="Erase without asking; required if stdin or stderr is not a terminal.")
def command(options: CommonOptions, yes: bool, **own: Any) -> None:
    """Erase records from LOG_DIR..., whose broker must be stopped.

    SIGINT or SIGTERM ends the run after the current group of segments is committed.  The run then prints its report and
    exits with status 1.
    """
    is_sure = yes or own["dry_run"] or own["checked"] is not None
    if not is_sure and not may_ask():
        raise UsageError(
            "erase asks before it changes anything, but stdin or stderr is not a terminal", advice="give --yes"
        )
    with stop_on_signals() as stop:
        confirm = None if is_sure else partial(_confirmed, stop=stop, view=options.view)
        report = perform(options, stop=stop, confirm=confirm, **own)
    if isinstance(report, CheckReport):
        options.conclude(report, print_check)
    options.conclude(report, print_report)


def _confirmed(shown: EraseRunReport, *, stop: threading.Event, view: View) -> bool:
    """Show the counts on stderr, and ask once."""
    print_report(shown, Screen(error_console(), view))
    records = sum(report.records_erased for report in shown.partitions)
    partitions = sum(report.status == ERASED for report in shown.partitions)
    return ask_on_terminal(f"Erase {counted(records, 'record')} from {counted(partitions, 'partition')}?", stop)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is a different module.
    from sediment.jobs.erase import command as importable

    importable()
