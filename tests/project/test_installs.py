"""No page, notebook or build file installs this package from an index, because it is on none; versions agree."""

from __future__ import annotations

import re

import pytest

from sediment.version import __version__
from tests.project.distributions import ROOT
from tests.project.installs import commands, from_an_index, shown, texts


def test_nothing_installs_the_package_from_an_index() -> None:
    found = [(path.name, command) for path, text in texts() for command in commands(text) if from_an_index(command)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install kafka-sediment",
        "$ pip install 'kafka-sediment[spark]>=0.1'",
        "run `python3 -m pip install --upgrade Kafka_Sediment==0.1.0` first",
        "cd x && uv pip install sediment # ours",
        "uvx sediment plan",
        "RUN pip install \\\n   kafka-sediment",
    ],
)
def test_an_installation_from_an_index_is_found(line: str) -> None:
    assert [word for command in commands(line) for word in from_an_index(command)]


@pytest.mark.parametrize(
    "line",
    [
        "pip install -c constraints.txt '.[spark]'",
        "pip install dist/kafka_sediment-0.1.0-py3-none-any.whl",
        "/opt/sediment/bin/pip install pandas",
        "the wheel needs no pip install",
    ],
)
def test_an_installation_from_a_file_is_not(line: str) -> None:
    assert not [word for command in commands(line) for word in from_an_index(command)]


def test_readme_notebooks_and_pages_say_how_to_install() -> None:
    pages = {path.name for paths in shown().values() for path in paths}
    assert {"README.md", "CONTRIBUTING.md", "airflow.md", "explore-a-topic.ipynb"} <= pages


def test_every_file_and_image_that_is_named_has_the_version_of_the_version_file() -> None:
    named = {
        (path.name, version)
        for path, text in texts()
        for version in re.findall(r"kafka_sediment-(\d[\w.]*?)(?=-py3|\.tar)|(?<=/sediment:)(\d[\w.]*)", text)
        for version in version
        if version and path.name != "CHANGELOG.md"
    }
    assert len(named) > 3
    assert {version for _, version in named} == {__version__}


def test_the_changelog_begins_with_the_version_of_the_version_file() -> None:
    (first,) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    assert first == __version__
