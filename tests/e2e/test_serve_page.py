"""The page on `serve` with every command that it shows: Sediment's, kcat and Kafka's own tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.corpus import load_case
from tests.e2e import console_tools as tools
from tests.jobs.log_dirs import sediment_process
from tests.project.pages import run_page
from tests.served import unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "query" / "serve.md"


def sediment(words: list[str]) -> str:
    """Run a command whose output the page leaves out."""
    outcome = sediment_process(*words[1:], timeout=300)
    assert outcome.status == 0, outcome.stderr
    return ""


def consumer_groups(words: list[str]) -> str:
    _, option, bootstrap, *arguments = words
    assert option == "--bootstrap-server"
    return tools.tool(bootstrap, tools.CONSUMER_GROUPS, *arguments)


def kcat(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    if tools.kcat_path() is None:
        pytest.skip("kcat is not installed")
    unpacked(tmp_path / "data")
    case = load_case("plain", tmp_path / "case")
    shutil.copytree(case.directory / "before", tmp_path / "before" / "prices-0")
    commands = {"sediment": sediment, "kafka-consumer-groups.sh": consumer_groups, "kcat": kcat}
    ran = run_page(PAGE, tmp_path, commands)
    assert set(ran) == {"sediment serve", "python", *commands}
