"""`sediment doctor`: a healthy machine, each fault of the machine and of a directory, and a machine without Spark."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import sediment
from sediment.engine.clone.partition_clone import note_producers_of_bare_copy
from sediment.jobs.diagnostics.check import WARNING, Check
from sediment.jobs.diagnostics.machine import machine_checks
from sediment.jobs.diagnostics.spark_setup import spark_checks
from sediment.jobs.doctor import DoctorReport, print_report
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.jobs.log_dirs import Outcome, make_log_dir, tree, write_checkpoint
from tests.jobs.log_dirs import sediment as command_line
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch

_HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
_WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from sediment.jobs.cli import main
main(sys.argv[1:])
"""
_POLICY = "--set=t:cleanup.policy=compact"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_segment(tmp_path / "source", 0, [batch_bytes(0)])
    return make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source", "t-1": tmp_path / "source"})


def by_name(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    assert report["command"] == "doctor" and report["schema"] == 1
    return {check["name"]: check for check in report["checks"]}


def checks_of(*arguments: object) -> dict[str, dict[str, Any]]:
    done = command_line("doctor", "--json", *arguments)
    found = by_name(done.report)
    assert done.status == (1 if any(check["status"] == "failed" for check in found.values()) else 0)
    return found


def spark_check(name: str) -> tuple[str, str]:
    (found,) = (check for check in spark_checks() if check.name == name)
    return found.status, found.found


# ---------------------------------------------------------------------------------------------------------- the machine
def test_this_machine_runs_the_tests_so_no_check_of_it_fails() -> None:
    found = checks_of()
    assert {name for name, check in found.items() if check["status"] == "failed"} == set()
    assert {"sediment", "kernel-cache", "native-codecs", "java", "spark", "worker-python", "delta"} <= found.keys()
    assert all(check["advice"] for check in found.values() if check["status"] != "ok")


def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done: Outcome = command_line("doctor", log_dir)
    too_long = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert all(" " not in line[30:] for line in too_long)  # a path, which is never cut, begins at column 30
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())
    wanted = [
        check.found for check in sediment.LogDirectories(log_dir).doctor().checks if check.name == "native-codecs"
    ]
    assert " ".join(wanted[0].split()) in " ".join(done.stdout.split())


@pytest.mark.parametrize("width", [10, 20, 25, 30, 45])
def test_on_a_narrow_terminal_the_text_starts_below_the_name(width: int) -> None:
    check = Check("worker-python", WARNING, "the Python is an old one", "set another one")
    text = io.StringIO()
    report = DoctorReport(run_id="r", now_ms=0, seconds=0.0, checks=(check,))
    print_report(report, Console(file=text, width=width))
    first, *others = text.getvalue().splitlines()[:-2]
    assert first == "warning  worker-python"
    assert " ".join(" ".join(others).split()) == f"{check.found} → {check.advice}"
    assert width < 20 or all(line.startswith("    ") and len(line) <= width for line in others)


def test_a_long_path_in_a_check_keeps_its_line() -> None:
    path = "/opt/" + "kafka-sediment/" * 8 + "python3"
    check = Check("worker-python", WARNING, f"the Python is {path}, which is old", f"export PYSPARK_PYTHON={path}")
    report = sediment.LogDirectories().doctor()
    text = io.StringIO()
    print_report(replace(report, checks=(check,)), Console(file=text, width=80))
    lines = [line.strip() for line in text.getvalue().splitlines()]
    assert f"{path}," in lines and f"PYSPARK_PYTHON={path}" in " ".join(lines)


def test_without_spark_the_other_checks_are_made_and_one_sentence_says_how_to_install_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    found = by_name(json.loads(done.stdout))
    assert (done.returncode, done.stderr) == (0, "")
    assert found["spark"]["status"] == "warning" and "pip install" in found["spark"]["advice"]
    assert found["native-codecs"]["status"] == "ok" and "worker-python" not in found


@pytest.mark.parametrize(
    ("variable", "value", "name", "text"),
    [
        ("JAVA_HOME", "/no/such/java", "java", "JAVA_HOME names none"),
        ("PYSPARK_PYTHON", "/no/such/python", "worker-python", "cannot be run: /no/such/python (PYSPARK_PYTHON)"),
        ("SPARK_HOME", "/no/such/spark", "spark", "the JARs of Spark are missing"),
    ],
)
def test_a_variable_that_names_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str, text: str
) -> None:
    monkeypatch.setenv(variable, value)
    status, found = spark_check(name)
    assert status == "failed" and text in found


def test_a_spark_of_another_version_than_pyspark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    status, found = spark_check("spark")
    assert status == "failed" and "3.5.1" in found


@pytest.mark.parametrize(
    ("release", "status", "text", "delta"),
    [
        ("3.4.1", "warning", "but this is Spark 3.4 (", "has no JARs for Spark 3.4"),
        ("3.5.9", "warning", "; the format kafka-log needs Spark 4.0 or newer, but this", "has no JARs for Spark 3.5"),
        ("4.1.4", "ok", "Spark 4.1.4 (", "_4.1_2.13:4.4.0"),
        ("4.3.0", "ok", "Spark 4.3.0 (", "has no JARs for Spark 4.3"),
        ("5.0.0", "warning", "Sediment is tested with Spark 3.5, 4.0, 4.1, 4.2 and 4.3, but this is Spark 5.0", "5.0"),
    ],
)
def test_the_release_of_spark_is_compared_with_those_that_are_tested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, status: str, text: str, delta: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", release)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{release}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    found = spark_check("spark")
    assert found[0] == status and text in found[1]
    status, said = spark_check("delta")
    assert status == "warning" and delta in said


def test_a_python_and_a_java_that_are_not_tested_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.15.1")
    found = next(machine_checks())
    assert found.status == "warning" and "Python 3.11, 3.12, 3.13 and 3.14, but this is Python 3.15 (" in found.found
    monkeypatch.setattr("sediment.jobs.diagnostics.spark_setup.java_version", lambda: 26)
    status, text = spark_check("java")
    assert status == "warning" and "Java 17, 21 and 25, but this is Java 26 (" in text


@pytest.mark.parametrize(
    ("said", "text"), [("3.9.1", "workers run 3.9.1"), (f"{sys.version.split()[0]} numba", "lacks numba")]
)
def test_a_worker_python_of_another_version_or_without_packages_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, text: str
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho {said}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    status, found = spark_check("worker-python")
    assert status == "failed" and text in found


def test_a_virtual_environment_that_is_not_activated_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(sys, "prefix", "/some/venv")
    assert spark_check("virtual-environment")[0] == "warning"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert spark_check("virtual-environment")[0] == "ok"


def test_an_empty_kernel_cache_is_cold(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK, "doctor", "--json"],
        env={**os.environ, CACHE_VARIABLE: str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    found = by_name(json.loads(done.stdout))["kernel-cache"]
    assert found["status"] == "warning" and "cold" in found["found"]


# ------------------------------------------------------------------------------------------------------ log directories
def test_a_healthy_directory_stays_as_it_is(log_dir: Path) -> None:
    before = tree(log_dir)
    found = checks_of(log_dir, _POLICY)
    assert tree(log_dir) == before
    names = ("log-directory", "permissions", "filesystem", "lock", "clean-shutdown", "free-space", "settings")
    assert {name: found[name]["status"] for name in names} == dict.fromkeys(names, "ok")
    assert found["log-directory"]["log_dir"] == str(log_dir) and found["java"]["log_dir"] is None


def test_a_path_that_is_not_a_log_directory_fails_and_the_others_are_checked(log_dir: Path, tmp_path: Path) -> None:
    report = sediment.LogDirectories(tmp_path / "none", log_dir).doctor()
    assert [check.status for check in report.checks if check.name == "log-directory"] == ["failed", "ok"]
    assert report.failed
    with pytest.raises(sediment.SedimentError, match="log-directory"):
        report.raise_for_status()
    assert report.to_arrow().num_rows == len(report.checks)


def test_a_directory_in_use_is_named_with_the_process(log_dir: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"t-0": 0})
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, log_dir / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        found = checks_of(log_dir, _POLICY)
        running.kill()
    assert (found["lock"]["status"], found["clean-shutdown"]["status"]) == ("warning", "ok")
    assert f"process {running.pid}" in found["lock"]["found"]
    assert checks_of(log_dir, _POLICY)["clean-shutdown"]["status"] == "warning"


def test_settings_that_are_unknown_missing_or_of_another_node_are_told_apart(log_dir: Path, tmp_path: Path) -> None:
    unstated = checks_of(log_dir)["settings"]
    assert unstated["status"] == "warning" and "cleanup.policy is not stated for t;" in unstated["found"]
    misspelt = checks_of(log_dir, "--set=t:retention=1")["settings"]
    assert misspelt["status"] == "failed" and "retention.ms" in misspelt["advice"]
    (log_dir / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=c\n")
    assert checks_of(log_dir)["settings"]["status"] == "warning"
    file = tmp_path / "server.properties"
    file.write_text(f"process.roles=broker\nnode.id=8\nlog.dirs={log_dir}\n")
    other = checks_of("--config", file)["settings"]
    assert other["status"] == "failed" and "node 8" in other["found"]


def test_a_policy_that_deletes_what_a_topic_needs_is_a_warning(tmp_path: Path, log_dir: Path) -> None:
    found = checks_of(log_dir, _POLICY)["policies"]
    assert found["status"] == "ok"
    keyless = encode_batch([Record(0, NOW_MS, None, b"{}")], base_offset=0, leader_epoch=0)
    for topic, content in {"_schemas": batch_bytes(0), "events": keyless, "plain": keyless}.items():
        write_segment(log_dir / f"{topic}-0", 0, [content])
    found = checks_of(log_dir, "--broker-defaults", _POLICY, "--set=events:cleanup.policy=compact")["policies"]
    assert found["status"] == "warning"
    assert "_schemas is the topic of a schema registry" in found["found"]
    assert "events-0 has records without a key" in found["found"]
    assert "plain" not in found["found"]


def test_a_transaction_that_hangs_is_a_warning_of_doctor_and_plan_also_without_compaction(tmp_path: Path) -> None:
    root = tmp_path / "root"
    hanging = batch_bytes(1, producer_id=9, transactional=True, timestamp=NOW_MS)
    write_segment(root / "t-0", 0, [batch_bytes(0, timestamp=NOW_MS), hanging])
    (root / ".kafka_cleanshutdown").touch()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (root / name).write_text("0\n1\nt 0 2\n")
    checkpoints = PartitionCheckpoints(clean_shutdown=True)
    note_producers_of_bare_copy(TopicPartition("t", 0), root / "t-0", checkpoints, Fs())
    assert command_line("recover", root).status == 0
    found = checks_of(root)["transactions"]
    assert (
        found["status"] == "warning" and "t-0: producer 9 (epoch 0) began a transaction at offset 1" in found["found"]
    )
    assert "--abort-open-transactions" in found["advice"]
    policy = ("--broker-defaults", "--set=t:cleanup.policy=delete", "--json")
    for later_ms, is_said in ((3_600_000, True), (60_000, False)):
        plan = command_line("plan", root, *policy, f"--now-ms={NOW_MS + later_ms}")
        (row,) = plan.report["partitions"]
        assert any("began a transaction at offset 1" in warning for warning in row["warnings"]) is is_said
    (root / ".kafka_cleanshutdown").unlink()
    assert checks_of(root)["transactions"]["status"] == "ok"


def test_every_partition_that_cannot_be_read_is_named_and_the_others_are_checked(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("a", "b", "lost", "z"):
        write_segment(log_dir / f"{topic}-0", 0, [batch_bytes(0)])
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"lost-0": 7, "t-0": 0})
    bad = [log_dir / name for name in ("a-0", "b-0", "z-0")]
    read_range = Fs.read_range

    def failing(self: Fs, path: Path, *arguments: Any, **named: Any) -> bytes:
        if path.parent in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_range(self, path, *arguments, **named)

    monkeypatch.setattr(Fs, "read_range", failing)
    found = checks_of(log_dir, _POLICY)["records"]
    assert found["status"] == "failed"
    assert "a-0 cannot be checked: " in found["found"] and "; nor can b-0, z-0" in found["found"]
    assert "lost-0: offsets 1 to 6 (6 offsets) are missing" in found["found"]
