"""Options that benchmarks pass to commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.generate import START_MS
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.settings.resolve import Settings

NOW_MS = START_MS + 10**9


def command_options(log_dirs: Iterable[Path], sets: Iterable[str], *, master: str | None = None) -> CommonOptions:
    """Return the options of a command on all partitions of `log_dirs`, with the settings `sets` of the form KEY=VALUE.

    `master` None: the command runs in the session of the benchmark.
    """
    return CommonOptions(
        log_dirs=tuple(log_dirs),
        settings=Settings.load(None, list(sets)),
        now_ms=NOW_MS,
        as_json=True,
        master=master,
        quiet=True,
    )
