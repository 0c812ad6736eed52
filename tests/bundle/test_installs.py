"""What README, pages, notebooks and messages say about installing is run as it stands, each in an empty environment.

A command runs in a copy of the files that Git knows.  Paths of an image, which has no other place here, are replaced.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sediment.segment_io.extras import install_command
from tests.project.distributions import ROOT, git_files
from tests.project.installs import shown

pytestmark = [pytest.mark.bundle, pytest.mark.timeout(3600)]

DIST = ROOT / "dist"
OF_IMAGES = {"/opt/sediment/bin/pip": "pip", "/tmp/constraints.txt": "constraints.txt", "/tmp/kafka": "dist/kafka"}
OF_OTHER_SUITES = ("airflow/bin/pip", "--group")
"""Airflow's environment is made by `make airflow-test`, and the groups are what every target of make installs."""

COMMANDS = sorted(each for each in shown() if not any(word in each for word in OF_OTHER_SUITES))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    for name in git_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    (wheel,) = DIST.glob("kafka_sediment-*.whl")
    (copy / "dist").mkdir()
    shutil.copy2(wheel, copy / "dist")
    return copy


class Environment:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)

    def run(self, command: str, where: Path) -> str:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=where,
            env={**kept, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def missing(environment: Environment, extra: str, where: Path) -> list[str]:
    """Return the packages of an extra that are not installed."""
    packages = [re.split("[<>=]", word)[0] for word in shlex.split(install_command(extra))[2:]]
    listed = {each["name"].lower() for each in json.loads(environment.run("pip list --format json", where))}
    return [package for package in packages if package not in listed]


def test_every_page_that_says_how_to_install_is_run() -> None:
    assert len(COMMANDS) >= 4
    assert any("[spark]" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_a_page_shows_installs_the_package_with_its_extras(
    command: str, checkout: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "environment")
    for path, here in OF_IMAGES.items():
        command = command.replace(path, here)
    environment.run(command, checkout)
    environment.run("pip check", tmp_path)
    assert environment.run("sediment --version", tmp_path).startswith("sediment, version ")
    extras = re.search(r"\[([\w,]+)\]", command)
    for extra in extras[1].split(",") if extras else ():
        assert missing(environment, extra, tmp_path) == []


def test_the_messages_that_name_packages_install_what_the_command_lacks(checkout: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    environment.run("pip install dist/*.whl", checkout)
    for extra in ("notebook", "hdfs", "spark", "delta"):
        assert missing(environment, extra, tmp_path) != []
        environment.run(install_command(extra), tmp_path)
        assert missing(environment, extra, tmp_path) == []
    environment.run("pip check", tmp_path)


def test_the_demo_runs_from_the_wheel_alone(checkout: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    (wheel,) = (checkout / "dist").glob("*.whl")
    environment.run(f"pip install -c constraints.txt 'dist/{wheel.name}[spark]'", checkout)
    said = environment.run("sediment demo 'a b'", tmp_path)
    assert "8 compacted; 1.2 MB shrank to" in said
    assert "8 of 8 partitions are a correct compaction" in said
    assert "<html" in (tmp_path / "a b" / "compact.html").read_text()
