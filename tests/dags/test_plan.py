"""The plan of the DAG: the arguments of each command, and errors before anything runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sediment.airflow.arguments import command_arguments
from tests.jobs.log_dirs import tree

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
AIRFLOW = Path(os.environ.get("SEDIMENT_AIRFLOW", ROOT / ".venv-airflow" / "bin" / "airflow"))
CALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import sediment_nightly as dag
from airflow.providers.common.compat.sdk import AirflowFailException
for line in sys.stdin:
    name, arguments = json.loads(line)
    try:
        answer = {"result": getattr(dag, name)(*arguments)}
    except AirflowFailException as error:
        answer = {"refused": str(error)}
    print("ANSWER", json.dumps(answer), flush=True)
"""
OLD = {"settings": {"retention.ms": 604800000}, "partitions": None, "force": True}
"""A variable that names neither `metadata` nor `config`."""


@pytest.fixture(scope="module")
def call(tmp_path_factory) -> Callable[..., Any]:
    """Call a function of the DAG's module in Airflow's own environment."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))}
    process = subprocess.Popen(
        [AIRFLOW.with_name("python"), "-c", CALL, ROOT / "conf" / "dags"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def answer(name: str, *arguments: object) -> Any:
        process.stdin.write(json.dumps([name, arguments]) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise AssertionError("the module cannot be loaded")

    yield answer
    process.stdin.close()
    process.wait(60)


@pytest.fixture
def plan(call) -> Callable[..., Any]:
    return lambda **given: call("plan_jobs", given, "run", 5)


def directory(path: Path, *partitions: str, kraft: bool = False, metadata: bool = False) -> str:
    for name in (*partitions, *(("__cluster_metadata-0",) if metadata else ())):
        (path / name).mkdir(parents=True)
    if kraft:
        (path / "meta.properties").write_text("#\n#date\nversion=1\nnode.id=1\ncluster.id=x\n")
    return str(path)


def commands(answer: Mapping[str, Any], number: int = 0) -> dict[str, list[str]]:
    """Return the arguments of each command in one directory."""
    assert "result" in answer, answer
    job = answer["result"][number]
    log_dirs = {"compact": [job["log_dir"]], "verify": [job["before"], job["log_dir"]], "expire": [job["log_dir"]]}
    return {name: command_arguments(name, paths, job[name])[1:] for name, paths in log_dirs.items()}


def test_an_old_variable_goes_on_for_a_bare_directory(plan, tmp_path):
    log_dir = directory(tmp_path / "bare", "orders-0")
    arguments = commands(plan(log_dirs=[log_dir], **OLD))
    assert arguments["expire"] == [log_dir, "--yes", "--now-ms=5", "--set=retention.ms=604800000"]
    assert {option.partition("=")[0] for options in arguments.values() for option in options}.isdisjoint(
        {"--metadata", "--config", "--broker-defaults", "--fail-on-unknown", "--allow-empty-selection"}
    )


def test_an_old_variable_on_disks_of_a_kraft_node_says_what_to_add_before_anything_runs(plan, tmp_path):
    first = directory(tmp_path / "a", "orders-0", kraft=True, metadata=True)
    second = directory(tmp_path / "b", "orders-1", kraft=True)
    third = directory(tmp_path / "c", "orders-2", kraft=True)
    before = tree(tmp_path)
    refused = plan(log_dirs=[first, second, third], **OLD)["refused"]
    assert f"{second}, {third}: " in refused and f"{first}," not in refused
    assert '"config"' in refused and '"metadata"' in refused and "variable `sediment`" in refused
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "added",
    [
        {"metadata": "{a}"},
        {"config": "/etc/kafka/server.properties"},
        {"metadata": {"{b}/": "{a}"}},
        {"config": {"{b}": "/etc/kafka/server.properties"}},
        {"settings": {"orders:cleanup.policy": "delete"}},
    ],
    ids=["metadata", "config", "metadata by directory", "config by directory", "a policy for each topic"],
)
def test_what_is_added_lets_it_run_and_reaches_each_command(plan, tmp_path, added):
    a = directory(tmp_path / "a", "orders-0", kraft=True, metadata=True)
    b = directory(tmp_path / "b", "orders-1", kraft=True)
    given = json.loads(json.dumps(added).replace("{a}", a).replace("{b}", b))
    answer = plan(log_dirs=[a, b], **given)
    ((name, value),) = given.items()
    is_for_all = isinstance(value, str)
    option = f"--{name}={value if is_for_all else next(iter(value.values()))}"
    for command, options in commands(answer, 1).items():
        assert name == "settings" or option in options, command
    assert (option in commands(answer, 0)["compact"]) == is_for_all


def test_an_object_that_names_another_directory_is_refused(plan, tmp_path):
    log_dir = directory(tmp_path / "a", "orders-0")
    refused = plan(log_dirs=[log_dir], metadata={f"{log_dir}x": log_dir})["refused"]
    assert f"{log_dir}x" in refused


def test_patterns_are_checked_over_all_directories_and_may_then_match_nothing_in_one(plan, tmp_path):
    one = directory(tmp_path / "one", "orders-0")
    other = directory(tmp_path / "other", "payments-0")
    refused = plan(log_dirs=[one, other], partitions=["orders-*", "payment-*"])["refused"]
    assert "'payment-*'" in refused and "payments-0" in refused
    answer = plan(log_dirs=[one, other], partitions=["orders-*"])
    for number in (0, 1):
        for command in ("compact", "expire"):
            assert {"--partition=orders-*", "--allow-empty-selection"} <= set(commands(answer, number)[command])


def test_a_directory_that_is_missing_leaves_its_own_tasks_to_fail(plan, tmp_path):
    one = directory(tmp_path / "one", "orders-0")
    answer = plan(log_dirs=[one, str(tmp_path / "missing")], partitions=["payments-*"])
    assert len(answer["result"]) == 2


def test_defaults_and_failing_on_unknown_are_passed_on(plan, tmp_path):
    arguments = commands(
        plan(log_dirs=[directory(tmp_path / "a", "t-0")], broker_defaults=True, fail_on_unknown=True)
    )  # fmt: skip
    assert all("--broker-defaults" in options for options in arguments.values())
    assert ["--fail-on-unknown" in arguments[command] for command in ("compact", "verify", "expire")] == [
        True, False, True,
    ]  # fmt: skip


def test_a_run_with_pages_names_them_and_a_dry_run_keeps_no_links(plan, tmp_path):
    log_dir = directory(tmp_path / "a", "t-0")
    given = {"log_dirs": [log_dir], "report_dir": "/reports", "compact_options": ["--roll-active"], "archive": "/table"}
    answer = plan(**given)
    assert {"--report=/reports/run/0-compact.html", f"--keep-before={log_dir}.before/run"} <= set(
        commands(answer)["compact"]
    )
    assert answer["result"][0]["compact_options"] == ["--roll-active"]
    assert "--archive=/table" in commands(answer)["expire"]
    pages = {
        name: [each for each in words if each.startswith("--metrics=")] for name, words in commands(answer).items()
    }
    assert len({page for (page,) in pages.values()}) == 3
    dry = commands(plan(dry_run=True, **given))
    assert "--dry-run" in dry["compact"] and "--dry-run" in dry["expire"] and "--dry-run" not in dry["verify"]
    assert not any(word.startswith("--keep-before") for word in dry["compact"])


def summed(command: str, **figures: Any) -> dict[str, Any]:
    return {
        "command": command,
        "seconds": 1.25,
        "partitions": {},
        "bytes_before": 0,
        "bytes_after": 0,
        "segments_deleted": 0,
        "unknown": {},
        "failed": 0,
        **figures,
    }


def test_the_figures_of_a_directory_come_from_the_summaries_of_its_commands(call):
    left = {"policy-unknown": {"partitions": 2, "bytes": 123}}
    compact = summed(
        "compact",
        partitions={"compacted": 5, "skipped": 7, "failed": 1},
        bytes_before=12_300_000,
        bytes_after=999,
        unknown=left,
        failed=1,
    )
    expire = summed("expire", bytes_before=5000, bytes_after=1000, segments_deleted=3, unknown=left)
    assert call("unstated", expire)["result"] == ["expire: policy-unknown (2 partitions, 123 B)"]
    assert call("figures", {"compact": compact, "verify": summed("verify"), "expire": expire})["result"] == {
        "partitions": "13",
        "compacted": "5",
        "bytes before": "12.3 MB",
        "bytes after": "999 B",
        "expired": "3 segments, 4.0 kB",
        "unknown": "2 policy-unknown",
        "failed": "1",
        "time": "3.8 s",
    }
    assert set(call("figures", {})["result"].values()) == {""}
