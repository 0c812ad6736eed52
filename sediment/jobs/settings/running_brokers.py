"""Detection of log directories that a broker or another run is using while a command reads them.

Like a directory after a crash, such a directory has no clean-shutdown marker, but it needs no repair.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from sediment.engine.directory.lock import lock_holder
from sediment.jobs.settings.directories import SelectedDirectory

_LOGGER = logging.getLogger(__name__)

UNCLEAN = "unclean"


def warn_of_running(directories: Iterable[SelectedDirectory]) -> dict[str, str]:
    """Warn of directories whose lock another process holds; commands that take no lock call this function.

    Returns:
        For the path of each of these directories, the reason why segments beyond the recovery point are not cleaned.
    """
    running = {}
    for directory in directories:
        worker = _at_work(directory.path)
        if worker is not None:
            _LOGGER.warning("%s: a broker or another run uses this directory (%s)", directory.path, worker)
            running[str(directory.path)] = (
                f"a broker or another run uses this directory ({worker}); until that process stops, nothing beyond the "
                "recovery point is cleaned"
            )
    return running


def _at_work(directory: Path) -> str | None:
    with contextlib.suppress(OSError):
        holder = lock_holder(directory)
        if holder is not None:
            return f"process {holder}" if holder else "the system does not report which process"
    return None
