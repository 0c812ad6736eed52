"""Archives of test data, and unpacking that also works in Python 3.11.0 to 3.11.3, which lack extraction filters."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, target: Path, *, trusted: bool = False) -> None:
    """Extract everything; not `trusted` refuses, where it can, what would leave `target`."""
    name = "fully_trusted_filter" if trusted else "data_filter"
    archive.extraction_filter = getattr(tarfile, name, lambda member, _path: member)
    archive.extractall(target)
