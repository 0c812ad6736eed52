"""`make release`: two builds have the same bytes, and the list of contents is what the bundle contains."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sediment.version import __version__
from tests.bundle.unpacked import unpack_bundle
from tests.project.distributions import ROOT, bare_environment, git_files

pytestmark = [pytest.mark.bundle, pytest.mark.timeout(3600)]

DIST = ROOT / "dist"
BUNDLE = "sediment-environment"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_checksums_are_those_of_every_file_of_the_release() -> None:
    listed = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    wanted = {
        f"kafka_sediment-{__version__}.tar.gz",
        f"kafka_sediment-{__version__}-py3-none-any.whl",
        f"{BUNDLE}.tar.gz",
        f"{BUNDLE}.cdx.json",
        "constraints.txt",
    }
    assert listed.keys() == wanted
    assert listed == {name: digest for name, digest in digests(DIST).items() if name in wanted}


def test_a_second_build_in_another_folder_has_the_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "another folder"
    for name in git_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    with tarfile.open(DIST / f"kafka_sediment-{__version__}.tar.gz") as archive:
        epoch = max(member.mtime for member in archive)
    # git's files have the time of this copy and another mode; the build has another umask, zone and language.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}

    def run(*command: object) -> None:
        subprocess.run([str(word) for word in command], cwd=copy, env=environment, check=True, umask=0o077)

    run("chmod", "-R", "go=", ".")
    run(sys.executable, "-m", "hatchling", "build", "-d", "dist")
    (wheel,) = (copy / "dist").glob("*.whl")
    python = subprocess.run(["conf/find-python.sh"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    run("conf/make-bundle.sh", python.strip(), sys.executable, wheel.relative_to(copy), f"dist/{BUNDLE}")
    again, first = digests(copy / "dist"), digests(DIST)
    assert again == {name: first[name] for name in again}
    assert len(again) == 4


def test_the_list_of_contents_names_every_package_of_the_bundle_with_its_licence() -> None:
    document = json.loads((DIST / f"{BUNDLE}.cdx.json").read_text())
    listed = {each["name"].lower().replace("_", "-"): each for each in document["components"]}
    with tarfile.open(DIST / f"{BUNDLE}.tar.gz") as archive:
        folders = {
            found[1] for name in archive.getnames() if (found := re.search(r"([^/]+)\.dist-info/METADATA$", name))
        }
    held = {tuple(re.sub("_", "-", folder.lower()).rsplit("-", 1)) for folder in folders}
    assert {(name, each["version"]) for name, each in listed.items()} == held
    assert [name for name, each in listed.items() if not each.get("licenses")] == []


def test_the_scripts_of_the_bundle_run_wherever_it_is_unpacked(tmp_path: Path) -> None:
    script = unpack_bundle(tmp_path / "a b").folder / "bin" / "sediment"
    said = subprocess.check_output([script, "--version"], cwd="/", env=bare_environment(tmp_path), text=True)
    assert said.startswith("sediment, version ")
