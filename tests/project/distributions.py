"""Source archive and wheels built from a copy of the files that Git knows, and environments that hold one of them.

Nothing is downloaded: an environment has its own packages and, by a .pth file, those of the environment that runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.archives import unpack

ROOT = Path(__file__).parents[2]
IS_CHECKOUT = (ROOT / ".git").exists()
PACKAGES = ("segment_io", "compaction", "retention", "engine", "jobs")
STRAY = (
    "airflow/dags/x.py",
    "airflow-home/y.cfg",
    ".venv-x/z.py",
    "dist/old.whl",
    "scratch/a",
    "sediment/jobs/__pycache__/b.pyc",
)


@dataclass(frozen=True, slots=True)
class Distributions:
    """The source archive and the wheels from the checkout and from that archive."""

    archive: Path
    from_checkout: Path
    from_archive: Path


def git_files() -> list[str]:
    """Paths of the files that Git knows, links among them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [name for name in os.fsdecode(listed).split("\0") if name and os.path.lexists(ROOT / name)]


def build(folder: Path) -> Distributions:
    """Build all three from a clean copy, in which also lies what other tools leave in a checkout."""
    checkout = folder / "checkout"
    for name in git_files():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    for name in STRAY:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("stray")
    _build(checkout, "sdist", folder / "archive")
    _build(checkout, "wheel", folder / "from-checkout")
    (archive,) = (folder / "archive").iterdir()
    with tarfile.open(archive) as opened:
        unpack(opened, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    _build(unpacked, "wheel", folder / "from-archive")
    (from_checkout,), (from_archive,) = ((folder / f"from-{name}").iterdir() for name in ("checkout", "archive"))
    return Distributions(archive, from_checkout, from_archive)


def _build(source: Path, kind: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of an archive or a wheel by name, without an archive's top folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            assert member.isfile(), member.name
            content = archive.extractfile(member)
            assert content is not None
            found[member.name.partition("/")[2]] = content.read()
    return found


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment in `folder`; returns its `bin`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # A .pth file that a .pth file leads to is not read, so an editable install stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return folder / "bin"


def bare_environment(home: Path, **more: str) -> dict[str, str]:
    """That of a new user: nothing of this environment or of the source tree in it."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder).is_relative_to(ROOT)]
    return kept | {"HOME": str(home), "PATH": os.pathsep.join(folders), "SPARK_LOCAL_IP": "127.0.0.1"} | more
