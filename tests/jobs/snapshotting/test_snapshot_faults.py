"""A refresh of a snapshot table, interrupted at every file operation of Spark and Delta.

The steps are those of a Hadoop filesystem below Delta (tests/faults/java).  Either the steps after the last one do
nothing, so that the files are those of a killed run; or a step fails and Spark goes on.  Hadoop syncs nothing on a
local filesystem, so a loss of power is not among the faults.

SEDIMENT_CRASH_MATRIX=whole (the target `crash`) tries every step; without it a few.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from sediment.jobs import snapshot as snapshots
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.snapshot import SnapshotOptions
from sediment.segment_io.errors import SedimentError
from tests.jobs.snapshots import Log, latest_rows, session_with_delta

pytestmark = [pytest.mark.delta, pytest.mark.timeout(0)]

IS_WHOLE = os.environ.get("SEDIMENT_CRASH_MATRIX") == "whole"
KINDS = ("SIGKILL", "torn write", "torn rename", "EIO", "ENOSPC")
SAMPLE = 3
SOURCES = Path(__file__).parents[2] / "faults" / "java"
NOW_MS = 1_700_000_100_000


class Faults:
    """The faults of the filesystem `faulty` in Spark's JVM."""

    def __init__(self, spark) -> None:
        self._system = spark.sparkContext._jvm.java.lang.System

    def arm(self, step: int, kind: str) -> None:
        """Count from here; `step` fails, 0: none does."""
        for name, value in (("count", "0"), ("steps", ""), ("step", str(step)), ("kind", kind)):
            self._system.setProperty(f"sediment.faults.{name}", value)

    def disarm(self) -> list[str]:
        """Let everything work; the steps since `arm`."""
        steps = self._system.getProperty("sediment.faults.steps").splitlines()
        self.arm(0, "")
        return steps


@pytest.fixture(scope="module")
def spark(sc, tmp_path_factory) -> Iterator:
    with session_with_delta() as session:
        scratch = tmp_path_factory.mktemp("faulty")
        classes, jar = scratch / "classes", scratch / "faulty.jar"
        jars = Path(pyspark.__file__).parent / "jars"
        sources = map(str, SOURCES.glob("*.java"))
        compile_them = ["javac", "--release", "17", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *sources]
        subprocess.run(compile_them, check=True, capture_output=True)
        subprocess.run(["jar", "cf", str(jar), "-C", str(classes), "."], check=True, capture_output=True)
        jvm = session.sparkContext._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
        session.sparkContext._jsc.addJar(str(jar))
        hadoop = session.sparkContext._jsc.hadoopConfiguration()
        hadoop.setClassLoader(loader)
        hadoop.set("fs.faulty.impl", "sediment.faults.FaultyFileSystem")
        hadoop.set("fs.AbstractFileSystem.faulty.impl", "sediment.faults.FaultyFiles")
        yield session


def refresh(spark, log_dir: Path, to: str):
    options = CommonOptions(
        log_dirs=(log_dir,),
        settings=Settings.load(None, [], broker_defaults=True),
        now_ms=NOW_MS,
        as_json=True,
        quiet=True,
    )
    return snapshots.refresh(options, SnapshotOptions(to), None, spark)


def rows(spark, path: Path):
    """(key, value, offset) of the table as a reader sees it; None where there is none."""
    from delta.tables import DeltaTable

    # This session would answer from its cache of the time before the table existed.
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    if not DeltaTable.isDeltaTable(spark, str(path)):
        return None
    found = spark.read.format("delta").load(str(path)).select("key", "value", "offset").collect()
    return sorted((bytes(row.key), bytes(row.value), row.offset) for row in found)


def expected(directory: Path):
    return sorted((key, value, offset) for key, value, _, _, offset, *_ in latest_rows(directory))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [False, True], ids=["the first refresh", "a later refresh"])
def test_a_refresh_cut_off_at_any_step_has_happened_or_not_and_the_next_one_completes_it(
    spark, tmp_path: Path, begun: bool, kind: str, capsys
):
    log_dir, base = tmp_path / "logs", tmp_path / "base"
    log = Log(log_dir / "t-0").append(a="1", b="1", c="1")
    log.write()
    before = None
    if begun:
        refresh(spark, log_dir, str(base))
        before = expected(log_dir / "t-0")
        log.append(a="2", b=None, d="2").write()
    after = expected(log_dir / "t-0")
    faults = Faults(spark)

    def fresh(name: str) -> Path:
        """Delta remembers tables by their paths."""
        path = tmp_path / name
        if begun:
            shutil.copytree(base, path)
        return path

    faults.arm(0, "")
    refresh(spark, log_dir, f"faulty://disk{fresh('undisturbed')}")
    steps = faults.disarm()
    numbers = list(range(1, len(steps) + 1))
    if kind in ("torn write", "ENOSPC"):
        numbers = [number for number in numbers if steps[number - 1].startswith("create")]
    elif kind == "torn rename":
        numbers = [number for number in numbers if steps[number - 1].startswith("rename")]
    if not IS_WHOLE:
        numbers = numbers[-SAMPLE:]
    outcomes = set()
    for number in numbers:
        what = f"{kind} at step {number} ({steps[number - 1]})"
        path = fresh(f"table-{number}")
        faults.arm(number, kind)
        try:
            refresh(spark, log_dir, f"faulty://disk{path}")
            told = None
        except SedimentError as error:
            told = str(error)
        faults.disarm()
        found = rows(spark, path)
        assert found in (before, [], after) if not begun else found in (before, after), f"{what}: {found}"
        assert told is not None or found == after, what
        outcomes.add(found == after)
        report = refresh(spark, log_dir, f"faulty://disk{path}")
        assert rows(spark, path) == after, what
        assert report.partitions[0].next_offset == log.next_offset, what
        assert refresh(spark, log_dir, f"faulty://disk{path}").partitions[0].status == "unchanged", what
    assert numbers
    if IS_WHOLE:
        with capsys.disabled():
            name = "a later refresh" if begun else "the first refresh"
            print(f"\nsnapshot, {name}: {len(steps)} steps; {len(numbers)} {kind}")
