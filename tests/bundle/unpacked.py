"""The bundle of `make bundle`, unpacked for a driver as docs/operate/cluster.md says."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.archives import unpack

BUNDLE = Path(__file__).parents[2] / "dist" / "sediment-environment.tar.gz"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """`script` is what spark-submit runs."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def script(self) -> Path:
        (found,) = self.folder.glob("lib/python3.*/site-packages/sediment/jobs/cli.py")
        return found


def unpack_bundle(folder: Path) -> Unpacked:
    assert BUNDLE.exists(), "make bundle makes it"
    with tarfile.open(BUNDLE) as archive:
        unpack(archive, folder, trusted=True)  # it links to the host's Python
    return Unpacked(folder)
