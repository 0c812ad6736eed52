"""The DAG in Airflow, each of its tasks a real spark-submit, on copies of directories that Kafka wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import make_log_dir, tree

LIMIT_SECONDS = 1800  # a night is a dozen starts of Spark

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * LIMIT_SECONDS)]

ROOT = Path(__file__).parents[2]
AIRFLOW = Path(os.environ.get("SEDIMENT_AIRFLOW", ROOT / ".venv-airflow" / "bin" / "airflow"))
COMMANDS = ("compact", "verify", "expire", "forget_before")


@dataclass(frozen=True, slots=True)
class Airflow:
    """An Airflow of its own, with its database in SQLite."""

    home: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        environment |= {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "conf" / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SEDIMENT_RETRY_SECONDS": "0.1",
        }
        done = subprocess.run(
            [AIRFLOW, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        (self.home / "last.log").write_text(done.stdout + done.stderr)
        assert not check or done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.home / "airflow.db") as database:
            return database.execute(statement).fetchall()

    @property
    def name_of_assets(self) -> str:
        """The name of the table of assets, which Airflow 2 calls datasets."""
        return "asset" if ("asset",) in self.query("select name from sqlite_master") else "dataset"

    def night(self, **params: object) -> Night:
        """Return one run of the DAG."""
        before = self.query("select coalesce(max(id), 0) from dag_run")[0][0]
        self.run("dags", "test", "sediment_nightly", "--conf", json.dumps(params), check=False)
        ((run_id, state),) = self.query(f"select run_id, state from dag_run where id > {before}")
        rows = self.query(f"select task_id, map_index, state, try_number from task_instance where run_id = '{run_id}'")
        tasks = {(str(task), int(str(index))): (str(state), int(str(tries))) for task, index, state, tries in rows}
        return Night(str(state), tasks)


@dataclass(frozen=True, slots=True)
class Night:
    """Result of a run: the state and the tries of each task instance."""

    state: str
    tasks: Mapping[tuple[str, int], tuple[str, int]]

    def states(self, number: int) -> tuple[str, ...]:
        """Return the states of compact, verify, expire and forget_before in one directory."""
        return tuple(self.tasks[f"directory.{command}", number][0] for command in COMMANDS)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    assert AIRFLOW.exists(), "make airflow-test makes the environment of Airflow"
    home = Airflow(tmp_path_factory.mktemp("airflow"))
    home.run("db", "migrate")
    home.run("pools", "set", "sediment", "2", "Spark applications at a time")
    if home.name_of_assets == "dataset":
        home.run("dags", "reserialize")  # a scheduler of Airflow 2 does this; an event of an alias needs it
    return home


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return load_case("plain", tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def settings(plain):
    given = {f"plain:{key}": value for key, value in plain.configs.items()}
    return given | {
        "bounded:cleanup.policy": "delete",
        "bounded:retention.ms": "-1",
        "bounded:retention.bytes": "60000",
    }


def damage(log_dir: Path) -> None:
    log = next(path for path in sorted((log_dir / "plain-1").glob("*.log")) if path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)


def test_a_night_does_every_directory_whatever_becomes_of_the_others(airflow, plain, settings, tmp_path):
    """One is healthy, one has a damaged partition, one is not there."""
    partitions = {"plain-0": plain.before, "bounded-0": plain.before}
    healthy = make_log_dir(tmp_path / "healthy", {**partitions, "unstated-0": plain.before})
    damaged = make_log_dir(tmp_path / "damaged", {**partitions, "plain-1": plain.before})
    damage(damaged)
    untouched = tree(damaged / "plain-1")
    reports, metrics = tmp_path / "reports", tmp_path / "sediment.prom"
    standing = {"settings": settings, "force": True, "report_dir": str(reports), "metrics_file": str(metrics)}
    airflow.run("variables", "set", "sediment", json.dumps(standing))
    spark_conf = {"spark.pyspark.python": sys.executable}
    log_dirs = [str(healthy), str(damaged), str(tmp_path / "missing")]

    night = airflow.night(log_dirs=log_dirs, spark_conf=spark_conf)

    log = (airflow.home / "last.log").read_text()
    assert night.states(0) == ("success", "success", "success", "success"), log
    assert night.states(1) == ("failed", "success", "success", "success"), log
    assert night.states(2) == ("failed", "skipped", "skipped", "skipped"), log
    assert (night.tasks["plan", -1][0], night.tasks["report", -1][0], night.state) == ("success", "failed", "failed")
    assert night.tasks["directory.compact", 1][1] == 2, "a failed partition is tried again"
    assert night.tasks["directory.compact", 2][1] == 1, "wrong use is not"

    for log_dir in (healthy, damaged):
        assert_same_log(log_dir / "plain-0", plain.rounds[0].after, plain.compressed)
        assert len(list((log_dir / "bounded-0").glob("*.log"))) < len(list(plain.before.glob("*.log")))
        assert not list(Path(f"{log_dir}.before").iterdir())
    assert tree(damaged / "plain-1") == untouched

    (pages,) = (path for path in reports.iterdir() if path.name != "metrics")
    index = (pages / "index.html").read_text()
    for number, command in ((0, "compact"), (0, "verify"), (0, "expire"), (1, "compact"), (2, "compact")):
        name = f"{number}-{command}.html"
        assert f'href="{name}"' in index
        assert (pages / name).stat().st_size > 1000
    assert str(tmp_path / "missing") in index
    for command in ("compact", "expire"):
        assert re.search(rf"{command}: policy-unknown \(1 partition, [\d.]+ kB\)", index)
    healthy_row, damaged_row, missing_row = (row.split("<td") for row in index.split("<tr>")[2:])
    assert [cell.rpartition(">")[2] for cell in healthy_row[5:7]] == ["3", "1"], "partitions, compacted"
    assert re.search(r"\d segments, [\d.]+ kB", healthy_row[9])
    assert [row[11].rpartition(">")[2] for row in (healthy_row, damaged_row)] == ["0", "1"], "failed"
    assert missing_row[5].endswith(">"), "no figures without a report"
    assert "<li>" in index and re.search(r"plain-1 (failed|quarantined): \S+", index)
    assert tree(healthy / "unstated-0") == tree(plain.before)
    assert re.search(r"1 of \d partitions failed in compact: plain-1 in .*/damaged (failed|quarantined)", log)
    assert re.search(rf"wrong use or settings: .*{re.escape(log_dirs[2])}", log)
    assert '"schema":' not in log, "the report is not in the log"
    assert re.search(r"healthy: expire: policy-unknown .* not stated; give `config`, `metadata` or `settings`", log)

    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(metrics.read_text()) for sample in family.samples]
    assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}) == len(samples)
    success = {
        (sample.labels["directory"], sample.labels["command"]): sample.value
        for sample in samples
        if sample.name == "sediment_run_success"
    }
    assert success[str(healthy), "compact"] == success[str(damaged), "verify"] == 1
    assert success[str(damaged), "compact"] == success[log_dirs[2], "compact"] == 0

    asset = airflow.name_of_assets
    rows = airflow.query(
        f"select {asset}.uri, event.extra from {asset}_event as event join {asset} on {asset}.id = {asset}_id"
    )
    events = {urllib.parse.unquote(str(uri)): json.loads(str(extra))["changed"] for uri, extra in rows}
    assert events == {f"file://{healthy}": ["plain-0"], f"file://{damaged}": ["plain-0"]}


def test_a_wrong_compaction_is_caught_before_anything_expires(airflow, plain, settings, tmp_path):
    partitions = {"plain-0": plain.before, "bounded-0": plain.before}
    tampered = make_log_dir(tmp_path / "tampered", partitions)
    healthy = make_log_dir(tmp_path / "healthy", partitions)
    airflow.run("variables", "set", "sediment", json.dumps({"settings": settings, "force": True}))
    night = airflow.night(
        log_dirs=[str(tampered), str(healthy)],
        application=str(Path(__file__).with_name("fault_injector.py")),
        spark_conf={"spark.pyspark.python": sys.executable},
        before_dir=str(tmp_path / "kept"),
    )
    log = (airflow.home / "last.log").read_text()
    assert night.states(0) == ("success", "failed", "upstream_failed", "upstream_failed"), log
    assert night.states(1) == ("success", "success", "success", "success"), log
    assert (night.tasks["report", -1][0], night.state) == ("failed", "failed")
    assert tree(tampered / "bounded-0") == tree(plain.before)
    (kept,) = (tmp_path / "kept" / "0").iterdir()
    assert tree(kept / "plain-0") == tree(plain.before)
    assert not list((tmp_path / "kept" / "1").iterdir())

    # What docs/operate/airflow.md says to do then.
    shutil.rmtree(tampered / "plain-0")
    shutil.copytree(kept / "plain-0", tampered / "plain-0", copy_function=os.link)
    (tampered / "cleaner-offset-checkpoint").unlink()
    again = airflow.night(log_dirs=[str(tampered)], spark_conf={"spark.pyspark.python": sys.executable})
    assert again.states(0) == ("success", "success", "success", "success")
    assert again.state == "success"
    assert_same_log(tampered / "plain-0", plain.rounds[0].after, plain.compressed)


def test_airflow_lists_the_provider(airflow):
    assert "kafka-sediment" in airflow.run("providers", "list").stdout


def test_a_run_without_a_directory_says_what_to_set(airflow):
    airflow.run("variables", "set", "sediment", "{}")
    night = airflow.night()
    assert night.tasks["plan", -1] == ("failed", 1)
    assert night.state == "failed"
    assert "set it in the variable `sediment`" in (airflow.home / "last.log").read_text()
