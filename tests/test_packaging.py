"""The wheel holds the packages that the links of `sediment/` name, and works without the tree it was built from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("segment_io", "compaction", "retention", "engine", "jobs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", *build, str(ROOT)], check=True, stdin=subprocess.DEVNULL)
    (built,) = folder.glob("kafka_sediment-*.whl")
    return built


def test_the_wheel_holds_every_module_and_template_and_nothing_generic(wheel: Path) -> None:
    files = {path for package in PACKAGES for pattern in ("*.py", "*.html") for path in (ROOT / package).rglob(pattern)}
    modules = {f"sediment/{path.relative_to(ROOT)}" for path in files}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == modules | {"sediment/__init__.py"}


def test_the_wheel_imports_without_its_source_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # `python -P` leaves the working directory out; the wheel stands before the editable install.
    names = ", ".join(f"sediment.{package}" for package in PACKAGES)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {names}; print(sediment.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == tmp_path / "sediment" / "__init__.py"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from sediment.jobs.cli import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert "compact" in done.stdout
