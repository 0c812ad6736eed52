"""Output files of a run besides the ledger: an HTML page and a metrics file, both made from the JSON report.

Invariants: if a path cannot be written or is inside a log directory, an error is raised before the run changes
anything.  After the run, no function of this module raises an error, because the work is done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sediment.jobs.reporting.run_report import read_report
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    from sediment.jobs.settings.resolve import Settings

_ADVICE = "name a file outside the log directories, in an existing directory"


def check_output_file(file: Path, option: str, log_dirs: Iterable[Path]) -> None:
    if file.is_dir() or not file.parent.is_dir():
        what = "this is a directory" if file.is_dir() else "its directory is missing"
        raise UsageError(f"{option} cannot be written: {what}", path=str(file), advice=_ADVICE)
    path = without_links(file)
    for log_dir in log_dirs:
        if path.is_relative_to(without_links(log_dir)):
            raise UsageError(f"{option} must not be inside a log directory", path=str(file), advice=_ADVICE)


def error_document(command: str, now_ms: int, error: BaseException, sentence: str) -> str:
    return json.dumps({"command": command, "now_ms": now_ms, "error": sentence, "kind": type(error).__name__})


def write_page(
    report: str,
    file: Path,
    messages: Console,
    *,
    settings: Callable[[], dict[str, Settings]],
    given: Sequence[tuple[str, str]],
    log_dirs: Sequence[str] = (),
) -> None:
    """`settings` returns the effective settings by log directory; the key "" has the settings of the run.

    `given` are the command-line options, as (name, text), and `log_dirs` are the log directories as the caller wrote
    them.
    """

    def content() -> bytes:
        from sediment.jobs.reporting.html_page import render_html

        page = render_html(json.loads(report), options=given, settings=settings(), log_dirs=log_dirs)
        return encodable(page).encode()

    _write(file, content, "the report", messages)


def write_metrics(report: str, file: Path, messages: Console) -> None:
    def content() -> bytes:
        from sediment.jobs.reporting.metrics import last_success, metrics_text

        document = read_report(report)
        return metrics_text(
            document, finished_s=time.time(), last_success_s=last_success(file, str(document["command"]))
        )

    _write(file, content, "the metrics", messages)


def _write(file: Path, content: Any, what: str, messages: Console) -> None:
    try:
        Fs().replace_file(file, content())
    except Exception as error:
        messages.print(
            f"sediment: the run is done, but {what} could not be written to {file}: {error}",
            style="red",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
