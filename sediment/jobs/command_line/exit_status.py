"""Exit statuses of the commands, and the block that turns an error into one of them."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from sediment.jobs.command_line import stderr_log
from sediment.jobs.command_line.standard_output import OutputError
from sediment.jobs.reporting.error_text import error_text_of
from sediment.jobs.spark.cancellation import end_on_signals
from sediment.segment_io.errors import UsageError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_WRONG_USE = 2
EXIT_READER_LEFT = 141  # the status of a process that SIGPIPE ended
TRACEBACK_VARIABLE = "SEDIMENT_TRACEBACK"

CLICK_EXITS = (click.ClickException, click.exceptions.Exit, click.Abort)
"""The exceptions by which click itself ends a command, with an exit status of its own."""


class errors_as_exit_status:  # noqa: N801 - reads as a statement
    """End the command on SIGINT and SIGTERM; turn an error into one sentence on stderr and an exit status.

    A command that lost the reader of its stdout ends silently.  An error that is not a `SedimentError`, of the
    system or of Spark is a fault of Sediment.  Its trace goes to a file, or with $SEDIMENT_TRACEBACK to stderr.
    """

    def __enter__(self) -> None:
        self._signals = end_on_signals()
        self._signals.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._end(error)
        finally:
            self._signals.__exit__(kind, error, trace)

    def _end(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, CLICK_EXITS) or not isinstance(error, Exception | KeyboardInterrupt):
            return
        if isinstance(error, OutputError) and error.reader_left:
            sys.exit(EXIT_READER_LEFT)
        found = error_text_of(error)
        if not found.is_fault:
            stderr_log.log_error(found.sentence, reason_code=found.reason_code)
        elif os.environ.get(TRACEBACK_VARIABLE):
            return
        else:
            stderr_log.log_fault(found.sentence, error, reason_code=found.reason_code)
        sys.exit(EXIT_WRONG_USE if isinstance(error, UsageError) else EXIT_FAILED)
