"""Sediment on each platform: the demo, `doctor`, a directory that Kafka wrote and its result, and `kafka-log`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sediment.records import NewRecord, build_batch
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE, IN_TREE
from tests.corpus import CleaningCase, assert_same_log, load_case
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir
from tests.platforms.conditions import condition
from tests.platforms.environments import (
    LIMIT_SECONDS,
    UV,
    Environment,
    MissingError,
    emulated_python,
    make_environment,
)
from tests.platforms.platforms import AARCH64, AIRFLOWS, CONDITIONS, LOWEST, NAMES, PLATFORMS, USUAL, Platform
from tests.project.distributions import ROOT
from tests.segments import NOW_MS, write_segment
from tests.support_tables import FAILED, PASSED, Row, could_not_run, record
from tests.support_tables import PLATFORMS as TABLE

pytestmark = [pytest.mark.platforms, pytest.mark.timeout(4 * LIMIT_SECONDS)]

CASES = ("plain", "mixed-codecs", "transactions", "everything")
NOW = "--now-ms=1700001000000"
TESTS = ("tests/segment_io/format", "tests/compaction/test_clean_log.py")


@contextmanager
def recorded(name: str, tried: dict[str, str]) -> Iterator[None]:
    """Record what became of the block; what this machine lacks skips the test."""
    try:
        yield
    except MissingError as error:
        could_not_run(TABLE, Row(name, tried, f"not run: {error}"), NAMES)
        pytest.skip(str(error))
    except Exception:
        record(TABLE, Row(name, tried, FAILED), NAMES)
        raise
    record(TABLE, Row(name, tried, PASSED), NAMES)


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[CleaningCase]:
    return [load_case(name, tmp_path_factory.mktemp("corpus")) for name in CASES]


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
def test_commands_and_tables_work_on(
    platform: Platform, cases: list[CleaningCase], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Compiled kernels are cached by Python and numba, so platforms share this folder.
    base = tmp_path_factory.getbasetemp()
    kernels, work = Path(os.environ.get(CACHE_VARIABLE) or base / "kernels"), base / "work"
    kernels.mkdir(mode=0o700, exist_ok=True)
    tried = {
        "Python": platform.python,
        "Java": str(platform.java),
        "Spark": platform.spark,
        "packages": platform.packages,
        "machine": "x86-64",
    }
    with recorded(platform.name, tried):
        try:
            environment = make_environment(platform, work, str(kernels))
            tried |= environment.versions()
            environment.run("sediment", "demo", work / "demo")
            assert_doctor_knows(environment, platform)
            log_dir = assert_kafkas_result(environment, cases, work)
            if platform.has_data_sources:
                assert_kafka_log(environment, platform, log_dir, work / "checkpoint")
            if platform.packages == LOWEST:
                assert_tests_pass(environment)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def assert_doctor_knows(environment: Environment, platform: Platform) -> None:
    report = json.loads(environment.run("sediment", "doctor", "--json").stdout)
    found = {check["name"]: check for check in report["checks"]}
    assert [check for check in report["checks"] if check["status"] == "failed"] == []
    is_known = {name: found[name]["status"] == "ok" for name in ("sediment", "java", "spark")}
    assert is_known == {"sediment": True, "java": True, "spark": platform.has_data_sources}, found


def assert_kafkas_result(environment: Environment, cases: list[CleaningCase], work: Path) -> Path:
    """Plan, compact under spark-submit, and verify; the logs are those that Kafka's cleaner made of the same files."""
    log_dir, sets = corpus_log_dir(work / "logs", [(case, case.rounds[0]) for case in cases])
    planned = json.loads(environment.run("sediment", "plan", log_dir, "--json", "--force", NOW, *sets).stdout)
    assert {partition["status"] for partition in planned["partitions"]} == {"cleanable"}
    cli = environment.packages() / "sediment" / "jobs" / "cli.py"
    submit = ["--master", "local[2]", "--conf", "spark.ui.port=0", cli]
    kept = work / "before"
    done = environment.run(
        "spark-submit", *submit, "compact", log_dir, "--json", "--force", NOW, f"--keep-before={kept}", *sets
    )
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert {partition["status"] for partition in report["partitions"]} == {"compacted"}
    for case in cases:
        assert_same_log(log_dir / case.partition, case.rounds[0].after, case.compressed)
    verified = json.loads(environment.run("sediment", "verify", kept, log_dir, "--json", NOW, *sets).stdout)
    assert {partition["status"] for partition in verified["partitions"]} == {"correct"}
    return log_dir


def assert_tests_pass(environment: Environment) -> None:
    """Run the tests of what calls the packages of codecs, checksums and kernels, with the code of the checkout."""
    environment.install("pytest", "pytest-timeout", "hypothesis")
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", f"--basetemp={environment.home / 'tests'}"]
    done = environment.run("python", "-m", "pytest", *options, *(ROOT / each for each in TESTS))
    assert " passed" in done.stdout, done.stdout


def assert_kafka_log(environment: Environment, platform: Platform, log_dir: Path, checkpoint: Path) -> None:
    probe = shutil.copy(Path(__file__).with_name("probe.py"), checkpoint.parent)
    done = environment.run("python", "-P", probe, log_dir, checkpoint)
    found = json.loads(done.stdout.splitlines()[-1])
    records = environment.run("sediment", "dump", log_dir, "--what", "records", "--json", "--limit", 0)
    count = len(records.stdout.splitlines())
    assert (found["found"], found["registered"], found["streamed"]) == (count, count, [count, 0])
    if platform.spark.startswith(("4.0", "4.1")):
        assert "max_offsets_per_trigger needs Spark 4.2 or newer" in found["limited"]
    else:
        assert found["limited"] == count


# ----------------------------------------------------------------------------------------------------------- conditions
@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    work = tmp_path_factory.mktemp("usual") / "work"
    # The kernels are cached in the installation, as for one that several users share.
    yield make_environment(USUAL, work, IN_TREE)
    shutil.rmtree(work)


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_demo_works_with(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tried = {"packages": USUAL.packages, "machine": f"x86-64, {CONDITIONS[name]}"}
    with recorded(name, tried):
        spaces = tmp_path / "a b" / "größe"
        environment = (
            make_environment(USUAL, spaces.parent / "work", IN_TREE, folder=spaces / "environment")
            if name == "spaces"
            else request.getfixturevalue("usual")
        )
        tried |= environment.versions()
        with condition(name, environment) as given:
            folder = given.folder(spaces / "demo" if name == "spaces" else tmp_path / "demo")
            shown = given.run(environment, "sediment", "demo", folder).stdout
            assert "8 of 8 partitions are a correct compaction" in shown
            report = json.loads(given.run(environment, "sediment", "doctor", "--json", folder / "kafka-logs").stdout)
            assert [check for check in report["checks"] if check["status"] == "failed"] == []
            if name == "small":
                log_dir = make_log_dir(tmp_path / "logs", {"large-0": large_log(tmp_path / "large-0")})
                sets = ("--set=large:cleanup.policy=compact", NOW)
                compacted = given.run(environment, "sediment", "compact", log_dir, "--json", *sets)
                (partition,) = json.loads(compacted.stdout)["partitions"]
                assert (partition["status"], partition["messages_written"]) == ("compacted", LARGE_KEYS)


LARGE_KEYS = 1_000


def large_log(directory: Path) -> Path:
    """Write a partition of four segments of 64 MB and an active one, with values that no codec has packed."""
    value, offset = bytes(range(256)) * 40, 0
    for _segment in range(4):
        batches = []
        for _batch in range(64):
            records = [
                NewRecord(key=b"%06d" % (number % LARGE_KEYS), value=value, timestamp_ms=NOW_MS)
                for number in range(offset, offset + 100)
            ]
            batches.append(build_batch(records, base_offset=offset, leader_epoch=0))
            offset += 100
        write_segment(directory, offset - 6_400, batches)
    write_segment(directory, offset)
    return directory


# ------------------------------------------------------------------------------------------- another processor; Airflow
def test_kernels_equal_their_twins_on_aarch64(tmp_path: Path) -> None:
    """One process of an emulated Python compiles every kernel of a cleaning, and cleans logs like the twin."""
    tried = {"packages": "newest", "machine": "aarch64, emulated; kernels, codecs and cleanings in one process"}
    with recorded(AARCH64, tried):
        release, python = emulated_python()
        tried["Python"] = release
        packages = tmp_path / "packages"
        uv = [UV, "pip", "install", "--quiet", "--target", packages, "--only-binary", ":all:"]
        uv += [
            "--python-platform",
            "aarch64-manylinux_2_28",
            "--python-version",
            release,
            "-r",
            ROOT / "pyproject.toml",
        ]
        subprocess.run([*uv, "pytest", "pytest-timeout", "hypothesis"], check=True)
        tests = ["tests/segment_io/format/test_checksum.py", "tests/compaction/test_clean_log.py"]
        done = subprocess.run(
            [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "checksum or [0]", *tests],
            cwd=ROOT,
            env={
                "PYTHONPATH": str(packages),
                "HOME": str(tmp_path),
                "PATH": os.environ["PATH"],
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
        shutil.rmtree(packages)


@pytest.mark.parametrize("name", AIRFLOWS)
def test_the_operators_and_the_dag_work_in(name: str, tmp_path: Path) -> None:
    tried = {"packages": f"conf/{AIRFLOWS[name]}", "machine": "x86-64"}
    with recorded(name, tried):
        python = tmp_path / "airflow" / "bin" / "python"
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "airflow"], check=True)
        install = [UV, "pip", "install", "--quiet", "--no-deps", "--python", python]
        subprocess.run([*install, "-r", ROOT / "conf" / AIRFLOWS[name], "-e", ROOT], check=True)
        code = "import platform, airflow; print(platform.python_version(), airflow.__version__)"
        versions = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        tried |= {"Python": versions[-2], "Airflow": versions[-1]}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "airflow", "tests/dags"],
            cwd=ROOT,
            env={**os.environ, "SEDIMENT_AIRFLOW": str(python.with_name("airflow"))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
        shutil.rmtree(python.parents[1])
