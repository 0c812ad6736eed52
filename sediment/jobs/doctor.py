"""`sediment doctor [LOG_DIR…]`: check this machine and log directories for problems before a run.

Invariants: Spark is not started, nothing is changed and no lock is taken.  A check that cannot be carried out counts as
failed and does not end the command.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import Directory, File, PathOrUri, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE, EXIT_FAILED, errors_as_exit_status
from sediment.jobs.command_line.shared_options import (
    broker_configs_option,
    configs_option,
    json_option,
    metadata_dir_option,
    sets_option,
    topic_configs_option,
)
from sediment.jobs.diagnostics.check import FAILED, OK, WARNING, Check, failed
from sediment.jobs.diagnostics.log_directories import directory_checks
from sediment.jobs.diagnostics.machine import machine_checks
from sediment.jobs.diagnostics.spark_setup import spark_checks
from sediment.jobs.process import stderr_log
from sediment.jobs.process.standard_output import as_text, write_result
from sediment.jobs.reporting.arrow_rows import arrow_table
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import SCHEMA, Result, result_console
from sediment.jobs.settings.run_settings import load_run_settings
from sediment.segment_io.errors import RunFailedError, SedimentError
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs

if TYPE_CHECKING:
    import pyarrow as pa

_LEAST_TEXT_WIDTH = 30
_SHORT_INDENT = "    "

_STYLES = {OK: "green", WARNING: "yellow", FAILED: "bold red"}


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorReport(Result):
    """Report of `doctor`: the checks of the machine, then those of each log directory, then those of the settings."""

    run_id: str
    now_ms: int
    seconds: float
    checks: tuple[Check, ...]

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return any(check.status == FAILED for check in self.checks)

    def raise_for_status(self) -> Self:
        """Return this report if no check failed.

        Raises:
            RunFailedError: checks failed; the text lists their findings.
        """
        wrong = [f"{check.name}: {check.found}" for check in self.checks if check.status == FAILED]
        if wrong:
            raise RunFailedError(f"{counted(len(wrong), 'check')} failed: {'; '.join(wrong)}")
        return self

    def __repr__(self) -> str:
        return f"<DoctorReport: {_summary(self)}>"

    def to_json(self) -> str:
        """Return the one JSON object of `--json`."""
        values = asdict(self)
        values["seconds"] = round(self.seconds, 3)
        return json.dumps({"schema": SCHEMA, "command": "doctor", **values})

    def to_arrow(self) -> pa.Table:
        """Return the checks as a `pyarrow.Table`, with a column for each field."""
        return arrow_table(Check, self.checks)


def _summary(report: DoctorReport) -> str:
    counts = Counter(check.status for check in report.checks)
    texts = {OK: f"{counts[OK]} ok", WARNING: counted(counts[WARNING], "warning"), FAILED: f"{counts[FAILED]} failed"}
    return ", ".join(text for status, text in texts.items() if counts[status])


# ------------------------------------------------------------------------------------------------------------- checking
@dataclass(frozen=True, slots=True)
class DoctorOptions:
    log_dirs: tuple[PathOrUri, ...] = argument("[LOG_DIR]...")
    sets: tuple[str, ...] = sets_option()
    configs: tuple[File, ...] = configs_option(
        "Also check the settings in FILE, the broker's server.properties.  If no LOG_DIR is given, check every "
        "directory in its log.dirs.  Give the option once for each broker."
    )
    metadata_dir: Directory | None = metadata_dir_option()
    topic_configs: tuple[File, ...] = topic_configs_option()
    broker_configs: tuple[File, ...] = broker_configs_option()
    broker_defaults: bool = option(
        False,
        "Use Kafka's default for every setting that neither --set nor --config nor the cluster metadata gives.",
        is_shared=True,
    )
    as_json: bool = json_option()


def doctor(own: DoctorOptions) -> DoctorReport:
    """Run the checks; a wrong setting counts as a failed check."""
    started, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    checks = [*machine_checks(), *spark_checks()]
    try:
        settings = load_run_settings(
            own.configs,
            own.sets,
            topic_configs=own.topic_configs,
            broker_configs=own.broker_configs,
            broker_defaults=own.broker_defaults,
            metadata_dir=own.metadata_dir,
        )
        named = own.log_dirs or (settings.log_dirs() if own.configs else ())
        paths = [Path(each).absolute() for each in named]
        checks += directory_checks(paths, settings, Fs())
    except SedimentError as error:
        checks.append(failed("settings", error.what, error.advice))
    return DoctorReport(run_id=new_run_id(), now_ms=now_ms, seconds=time.monotonic() - started, checks=tuple(checks))


# -------------------------------------------------------------------------------------------------------------- showing
def print_report(report: DoctorReport, console: Console) -> None:
    width = max(len(check.name) for check in report.checks)
    for log_dir, checks in groupby(report.checks, key=lambda check: check.log_dir):
        if log_dir is not None:
            console.print()
            console.print(log_dir, style="bold", soft_wrap=True, highlight=False)
        for check in checks:
            for line in _lines(check, width, console.width):
                console.print(line, soft_wrap=True)
    console.print()
    console.print(_summary(report), highlight=False)


def _lines(check: Check, name_width: int, width: int) -> Iterator[Text]:
    status, name = check.status.ljust(len(WARNING)), f"  {check.name.ljust(name_width)}  "
    indent = " " * (len(status) + len(name))
    is_narrow = width - len(indent) < _LEAST_TEXT_WIDTH
    if is_narrow:
        indent = _SHORT_INDENT
    room = max(width - len(indent), 1)
    texts = [check.found] + ([f"→ {check.advice}"] if check.advice else [])
    wrapped = [line for text in texts for line in wrap(text, room, break_long_words=False, break_on_hyphens=False)]
    first, *others = ["", *wrapped] if is_narrow or not wrapped else wrapped
    head = Text.assemble((status, _STYLES[check.status]), name, first)
    head.rstrip()
    yield head
    for line in others:
        yield Text(indent + line)


# -------------------------------------------------------------------------------------------------------------- command
@plain_command("doctor", DoctorOptions)
def command(own: DoctorOptions) -> None:
    """Check this machine, and each LOG_DIR, for problems before a run.

    `doctor` does not start Spark, changes nothing and takes no lock.
    """
    with stderr_log.log_to_stderr(stderr_log.TEXT, quiet=own.as_json), errors_as_exit_status():
        report = doctor(own)
        write_result(
            report.to_json() + "\n" if own.as_json else as_text(partial(print_report, report), result_console())
        )
    raise SystemExit(EXIT_FAILED if report.failed else EXIT_DONE)


if __name__ == "__main__":
    from sediment.jobs.doctor import command as importable

    importable()
