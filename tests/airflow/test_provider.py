"""The entry point by which Airflow finds the provider."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import sediment

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
GROUP = "apache_airflow_provider"


def test_the_entry_point_describes_this_distribution() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    ((name, target),) = project["entry-points"][GROUP].items()
    info = EntryPoint(name, target, GROUP).load()()
    assert info["package-name"] == project["name"]
    assert info["versions"] == [sediment.__version__]
