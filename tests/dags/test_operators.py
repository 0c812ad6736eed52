"""The operators in Airflow's own environment: the example of the docs, default arguments and templates."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sediment.airflow.arguments import command_arguments

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
AIRFLOW = Path(os.environ.get("SEDIMENT_AIRFLOW", ROOT / ".venv-airflow" / "bin" / "airflow"))
PAGE = ROOT / "docs" / "operate" / "airflow.md"
RENDER = """
import json, sys
exec(sys.stdin.read())
from sediment.airflow.operators import SedimentOperator
recover = SedimentOperator(task_id="recover", command="recover", log_dirs=["/a"], options={"dry_run": True})
found = {}
for operator in (compact, verify, expire, recover):
    operator.render_template_fields({"ds": "2026-01-02", "ds_nodash": "20260102"})
    options = {**operator.common_options, **operator.options}
    found[operator.task_id] = [operator.command, operator.log_dirs, options, operator.application, operator.name]
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Command, log directories, options, application and name of each operator of the example."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [AIRFLOW.with_name("python"), "-c", RENDER],
        input=example,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))},
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FOUND " in done.stdout, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND ")[2])
    return found


def test_the_example_of_the_docs_becomes_commands(rendered: dict[str, Any]) -> None:
    commands = {task: command_arguments(command, dirs, given) for task, (command, dirs, given, *_) in rendered.items()}
    before, config = "/mnt/a/before/20260102", "--config=/etc/kafka/server.properties"
    assert set(commands["compact"]) >= {"compact", "/mnt/a/kafka-logs", f"--keep-before={before}", config}
    assert "--max-seconds=7200" in commands["compact"]
    assert commands["verify"] == ["verify", before, "/mnt/a/kafka-logs", config]
    expired = ["/mnt/a/kafka-logs", config, "--report=/var/lib/sediment/2026-01-02.html", "--yes"]
    assert commands["expire"] == ["expire", *expired]
    assert commands["recover"] == ["recover", "/a", "--dry-run"]


def test_an_operator_submits_the_command_line_of_its_installation(rendered: dict[str, Any]) -> None:
    *_, application, name = rendered["compact"]
    assert Path(application).resolve() == (ROOT / "sediment" / "jobs" / "cli.py").resolve()
    assert name == "sediment compact"
