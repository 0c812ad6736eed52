"""Keywords of the operators become arguments that the commands accept; the operators have every option by name."""

from __future__ import annotations

import ast
import inspect
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

import sediment
from sediment.airflow.arguments import command_arguments
from sediment.api import SharedOptions
from sediment.jobs.cli import main
from sediment.jobs.command_line.click_options import CommandOption
from sediment.jobs.command_line.declaration import declared_options
from sediment.jobs.command_line.shared_options import GivenOptions

ROOT = Path(__file__).parents[2]
OF_PYTHON = {"master", "spark"}  # the connection gives the master
OF_THE_OPERATOR = {"command", "options", "arguments", "json_report", "application"}
COMMANDS = {
    "SedimentPlanOperator": "plan",
    "SedimentCompactOperator": "compact",
    "SedimentVerifyOperator": "verify",
    "SedimentExpireOperator": "expire",
}


def operator_classes() -> dict[str, ast.ClassDef]:
    source = (ROOT / "sediment" / "airflow" / "operators.py").read_text()
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def keywords(node: ast.ClassDef) -> dict[str, str | None]:
    """Return the keywords of an operator with the text of their defaults."""
    (init,) = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    defaults = (None if each is None else ast.unparse(each) for each in init.args.kw_defaults)
    return dict(zip((each.arg for each in init.args.kwonlyargs), defaults, strict=True))


@pytest.mark.parametrize(("operator", "command"), COMMANDS.items())
def test_an_operator_has_the_keywords_and_defaults_of_python(operator: str, command: str) -> None:
    classes = operator_classes()
    common = {name: each for name, each in keywords(classes["SedimentOperator"]).items() if name not in OF_THE_OPERATOR}
    own = keywords(classes[operator])
    given = {**common, **own}
    method = inspect.signature(getattr(sediment.LogDirectories, command)).parameters
    wanted = {each.keyword: repr(each.default_text) for each in declared_options(GivenOptions)}
    wanted = {name: each for name, each in wanted.items() if name in SharedOptions.__annotations__} | {"log_dirs": "()"}
    wanted |= {
        name: None if each.default is inspect.Parameter.empty else repr(each.default)
        for name, each in method.items()
        if name != "self"
    }
    wanted = {name: each for name, each in wanted.items() if name not in OF_PYTHON}
    if command == "verify":
        del given["log_dirs"], given["after"], wanted["log_dirs"]
    assert given == wanted


@pytest.mark.parametrize(("operator", "command"), COMMANDS.items())
def test_every_option_of_an_operator_is_an_option_of_the_command(operator: str, command: str) -> None:
    declared = main.get_command(click.Context(main), command)
    assert declared is not None
    options = [each for each in declared.params if isinstance(each, CommandOption)]
    known = {each.keyword: max(each.opts, key=len) for each in options}
    classes = operator_classes()
    taken = {*keywords(classes["SedimentOperator"]), *keywords(classes[operator])} - OF_THE_OPERATOR
    for keyword in taken - {"log_dirs", "before", "after"}:
        ((_, word),) = [command_arguments(command, (), {keyword: True})]
        assert word == known[keyword], keyword


def test_arguments_are_those_of_the_command_line() -> None:
    options = {
        "dry_run": True,
        "force": False,
        "ledger": None,
        "max_seconds": 3600,
        "keep_before": Path("/before"),
        "partitions": ["orders-*", "users-0"],
        "topics": "orders",
        "settings": {"orders:retention.ms": 1000, "log.cleaner.enable": True, "cleanup.policy": ["compact", "delete"]},
    }
    assert command_arguments("compact", ["/a", Path("/b")], options) == [
        "compact", "/a", "/b", "--dry-run", "--max-seconds=3600", "--keep-before=/before",
        "--partition=orders-*", "--partition=users-0", "--topic=orders",
        "--set=orders:retention.ms=1000", "--set=log.cleaner.enable=true", "--set=cleanup.policy=compact,delete",
    ]  # fmt: skip


def test_settings_may_be_texts_and_one_directory_a_text() -> None:
    assert command_arguments("plan", "/a", {"settings": ["a:b=c"]}) == ["plan", "/a", "--set=a:b=c"]


def test_the_tested_airflow_is_one_that_the_extra_accepts() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["airflow"]
    pins = (ROOT / "conf" / "airflow-constraints.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in pins if "==" in line)
    for requirement in map(Requirement, extra):
        assert requirement.specifier.contains(tested[requirement.name]), requirement
