"""The options that commands share, and how their errors become exit statuses."""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from sediment.jobs.sentences import told
from sediment.jobs.session import under_spark_submit
from sediment.jobs.settings import Settings
from sediment.segment_io.errors import SedimentError, UsageError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_WRONG_USE = 2

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What every command takes (commands.md); `now_ms` is fixed once, here."""

    log_dirs: tuple[Path, ...]
    partitions: tuple[str, ...]
    settings: Settings
    now_ms: int
    as_json: bool
    master: str | None
    quiet: bool

    def messages(self) -> Console:
        """Where people are told things: stderr, silent with --quiet."""
        return Console(stderr=True, quiet=self.quiet)


def common_options(command: _Command) -> _Command:
    """Add the options and pass them on as one `CommonOptions` named `options`."""

    @functools.wraps(command)  # also takes over the command's own options
    def wrapped(
        log_dirs: Sequence[Path],
        partitions: Sequence[str],
        sets: Sequence[str],
        config: Path | None,
        now_ms: int | None,
        as_json: bool,
        master: str | None,
        quiet: bool,
        **own: Any,
    ) -> Any:
        # spark-submit sends a Python driver's stderr to stdout, where --json promises nothing but the object.
        quiet = quiet or (as_json and under_spark_submit())
        _log_to_stderr(quiet=quiet)
        with errors_as_exit_status():
            options = CommonOptions(
                log_dirs=tuple(log_dirs),
                partitions=tuple(partitions),
                settings=Settings.load(config, sets),
                now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
                as_json=as_json,
                master=master,
                quiet=quiet,
            )
            return command(options=options, **own)

    decorated: Any = wrapped
    for option in reversed(
        (
            click.argument("log_dirs", metavar="LOG_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)),
            click.option(
                "--partition", "partitions", multiple=True, metavar="TOPIC-N", help="Only these; globs allowed."
            ),
            click.option(
                "--set", "sets", multiple=True, metavar="[TOPIC:]KEY=VALUE", help="A topic or broker setting."
            ),
            click.option(
                "--config",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Java properties, e.g. server.properties.",
            ),
            click.option("--now-ms", type=click.IntRange(min=0), help="The clock of every rule (default: now)."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."),
            click.option("--master", metavar="URL", help="Spark master (default: local[*], or spark-submit's)."),
            click.option("--quiet", is_flag=True, help="No progress, no warnings."),
        )
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def _log_to_stderr(*, quiet: bool) -> None:
    """Warnings as sentences, each once; none with --quiet."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        fresh = message not in said
        said.add(message)
        return fresh

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(is_new)
    logging.basicConfig(handlers=[handler], level=logging.ERROR if quiet else logging.WARNING, format="%(message)s")


class errors_as_exit_status:  # noqa: N801 - reads as a statement
    """Turn an error into one sentence on stderr and its exit status."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, (SedimentError, OSError)):
            click.echo(f"sediment: {told(error)[1]}", err=True)
            sys.exit(EXIT_WRONG_USE if isinstance(error, UsageError) else EXIT_FAILED)
