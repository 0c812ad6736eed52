"""Exit statuses of the commands, and the conversion of errors to exit statuses."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from sediment.jobs.process import stderr_log
from sediment.jobs.process.cancellation import end_on_signals
from sediment.jobs.process.standard_output import OutputError
from sediment.jobs.reporting.error_text import error_text_of
from sediment.segment_io.errors import UsageError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_WRONG_USE = 2
EXIT_READER_LEFT = 141  # the exit status of a process killed by SIGPIPE
TRACEBACK_VARIABLE = "SEDIMENT_TRACEBACK"

CLICK_EXITS = (click.ClickException, click.exceptions.Exit, click.Abort)


class errors_as_exit_status:  # noqa: N801 - reads as a statement
    """End the command on SIGINT and SIGTERM; turn an error into one line on stderr and an exit status.

    A command ends silently if the reader of its stdout has closed the pipe.  A `SedimentError` and an error of the
    system or of Spark become one line; any other error is a bug in Sediment.  The traceback of a bug goes to a file, or
    to stderr if $SEDIMENT_TRACEBACK is set.
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
        elif os.environ.get(TRACEBACK_VARIABLE) or stderr_log.is_verbose():
            return
        else:
            stderr_log.log_fault(found.sentence, error, reason_code=found.reason_code)
        sys.exit(EXIT_WRONG_USE if isinstance(error, UsageError) else EXIT_FAILED)
