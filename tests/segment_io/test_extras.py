"""The advice that installs an extra names packages that an index has, as pyproject.toml bounds them."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sediment.segment_io import extras
from sediment.segment_io.extras import install_command

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    found: set[str] = set()
    for requirement in requirements:
        own = re.fullmatch(r"kafka-sediment\[(.+)\]", requirement)
        found |= names(EXTRAS[own[1]]) if own else {re.split("[<>=]", requirement)[0]}
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_named_one_by_one(extra: str) -> None:
    command = install_command(extra)
    assert command.startswith("pip install ") and "sediment" not in command
    assert {re.split("[<>=]", word.strip("'"))[0] for word in command.split()[2:]} == names(EXTRAS[extra])


def test_without_metadata_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)
    assert install_command("delta") == "install kafka-sediment with its extra delta"
