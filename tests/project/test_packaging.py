"""The source archive, the wheels and Git have the same files, and an installation needs no source tree.

A compaction with what each of them installs is in tests/bundle: it compiles every kernel anew.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.jobs.log_dirs import make_log_dir
from tests.project.distributions import (
    IS_CHECKOUT,
    PACKAGES,
    ROOT,
    STRAY,
    Distributions,
    bare_environment,
    build,
    contents,
    git_files,
    install,
)
from tests.segments import NOW_MS, batch_bytes, write_segment

pytestmark = pytest.mark.skipif(not IS_CHECKOUT, reason="only a checkout says which files there are")

CODE = (".py", ".html", ".css", ".schema", ".java", "/py.typed", ".json.gz", ".tar.xz")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(tmp_path_factory.mktemp("built"))


def test_the_top_level_names_are_links_into_the_package() -> None:
    for package in PACKAGES:
        assert (ROOT / package).readlink() == Path("sediment", package)


def test_the_archive_holds_the_files_that_git_knows_and_nothing_else(built: Distributions) -> None:
    expected = {name: (ROOT / name).read_bytes() for name in git_files() if not (ROOT / name).is_symlink()}
    held = contents(built.archive)
    assert held.pop("PKG-INFO")
    assert held.keys() == expected.keys()
    assert held == expected
    assert not any(name in held for name in STRAY)


def test_both_wheels_hold_every_module_and_template_and_nothing_generic(built: Distributions) -> None:
    code = {name for name in git_files() if name.startswith(("sediment/", "pyspark_kafkalog/"))}
    assert all(name.endswith(CODE) for name in code)
    for wheel in (built.from_checkout, built.from_archive):
        held = {name for name in contents(wheel) if ".dist-info/" not in name}
        assert held == code
        assert "sediment/py.typed" in held


def test_the_wheel_from_the_archive_is_the_wheel_from_the_checkout(built: Distributions) -> None:
    assert contents(built.from_archive) == contents(built.from_checkout)


def test_the_metadata_names_the_extras_of_users_and_no_development_tool(built: Distributions) -> None:
    for distribution in (built.from_checkout, built.from_archive, built.archive):
        (metadata,) = (
            content
            for name, content in contents(distribution).items()
            if name == "PKG-INFO" or name.endswith(".dist-info/METADATA")
        )
        fields = message_from_bytes(metadata)
        assert set(fields.get_all("Provides-Extra", [])) == {"airflow", "delta", "hdfs", "notebook", "spark"}
        named = {Requirement(text).name for text in fields.get_all("Requires-Dist", [])}
        assert named.isdisjoint({"hypothesis", "mkdocs-material", "mypy", "pytest", "ruff"})


def test_every_target_of_make_installs_groups_that_exist() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert set(re.findall(r"--group ([a-z0-9]+)", (ROOT / "Makefile").read_text())) == groups.keys()


def test_what_is_installed_works_without_its_source_tree(built: Distributions, tmp_path: Path) -> None:
    programs = install(built.from_archive, tmp_path / "environment")
    write_segment(tmp_path / "source", 0, [batch_bytes(0)])
    write_segment(tmp_path / "source", 1)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            env=bare_environment(tmp_path),
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    imported = ", ".join(f"sediment.{package}" for package in PACKAGES)
    where = run(programs / "python", "-P", "-c", f"import {imported}; print(sediment.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path)
    assert "compact" in run(programs / "sediment", "--help")
    settings = ("--set=t:cleanup.policy=delete", "--set=t:retention.ms=1", "--now-ms", NOW_MS * 2)
    (partition,) = json.loads(run(programs / "sediment", "expire", log_dir, "--json", *settings))["partitions"]
    assert partition["status"] == "expired"
