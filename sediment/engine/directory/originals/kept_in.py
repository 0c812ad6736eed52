"""Where a run keeps files of its log directories: hard links need a place on the filesystem of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import without_links

LOG_DIR = "{log_dir}"


@dataclass(frozen=True, slots=True)
class KeptIn:
    pattern: str

    def of(self, log_dir: Path) -> Path:
        # `{log_dir}` is the directory itself, not a link to it: a neighbour of the link may be on another filesystem.
        return without_links(Path(self.pattern.replace(LOG_DIR, str(without_links(log_dir)))))

    def __str__(self) -> str:
        return self.pattern


KEPT_BEFORE_CUTS = KeptIn(f"{LOG_DIR}-originals")
"""Where `recover` keeps logs from which it must cut off records, if the caller keeps no originals."""


def kept_in(given: Path | None, log_dirs: Sequence[Path], *, shares: bool) -> KeptIn | None:
    """Return the places that `given`, a directory or a pattern, means for `log_dirs`; None if it is not given.

    Where one directory cannot serve all of them, a name without a slash means a neighbour of each: `before` keeps
    /d1/kafka-logs in /d1/kafka-logs-before. `shares` is True if one directory may keep files of several log
    directories; it then must be on the filesystem of all of them.
    """
    if given is None:
        return None
    if LOG_DIR in str(given):
        return KeptIn(str(given))
    is_one = len(log_dirs) < 2
    if (shares or is_one) and _on_one_filesystem(given.absolute(), log_dirs):
        return KeptIn(str(given.absolute()))
    if given.name == str(given):
        return KeptIn(f"{LOG_DIR}-{given.name}")
    if is_one:
        return KeptIn(str(given.absolute()))  # the check of the filesystem names what is wrong
    raise UsageError(
        "one directory cannot keep hard links to files of several log directories"
        + (" on different filesystems" if shares else ""),
        path=str(given),
        advice=f"give a name without a slash, for a neighbour of each of them, or a pattern such as '{LOG_DIR}-"
        f"{given.name}'",
    )


def _on_one_filesystem(target: Path, log_dirs: Sequence[Path]) -> bool:
    present = next(path for path in (target, *target.parents) if path.exists())
    return {path.stat().st_dev for path in log_dirs if path.exists()} <= {present.stat().st_dev}
