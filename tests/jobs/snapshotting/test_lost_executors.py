"""A refresh on a cluster of two executors that are killed after they have read the logs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sediment.jobs import snapshot as snapshots
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.snapshot import SnapshotOptions
from tests.jobs.snapshots import Log, latest_rows, session_with_delta
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.delta

NOW_MS = 1_700_000_100_000

# `sediment snapshot`, which kills every executor between the last task that reads and the commit.
KILLING = """
import sys, psutil
from sediment.jobs import snapshot

split = snapshot.split_by_result

def after_a_kill(*arguments):
    executors = [
        child
        for child in psutil.Process().children(recursive=True)
        if any("CoarseGrainedExecutorBackend" in argument for argument in child.cmdline())
    ]
    for executor in executors:
        executor.kill()
    psutil.wait_procs(executors)
    print("killed", len(executors), file=sys.stderr)
    return split(*arguments)

snapshot.split_by_result = after_a_kill
snapshot.command()
"""


def test_executors_that_are_lost_with_what_they_have_read_cost_only_time(tmp_path):
    log_dir, to = tmp_path / "logs", tmp_path / "table"
    logs = [Log(log_dir / f"t-{number}").append(a="1", b="1") for number in range(4)]
    with session_with_delta() as spark:
        for log in logs:
            log.write()
        settings = Settings.load(None, [], broker_defaults=True)
        options = CommonOptions(log_dirs=(log_dir,), settings=settings, now_ms=NOW_MS, quiet=True)
        snapshots.refresh(options, SnapshotOptions(str(to)), None, spark)
        for log in logs:
            log.append(a="2", b=None, c="2").write()
        arguments = (str(log_dir), f"--to={to}", "--master=local-cluster[2,1,1024]", "--broker-defaults")
        killed = subprocess.run(
            [sys.executable, "-c", KILLING, *arguments],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert "killed 2" in killed.stderr, killed.stderr
        assert killed.returncode == 0, killed.stderr
        rows = spark.read.format("delta").load(str(to)).collect()
    found = sorted((row.partition, bytes(row.key), bytes(row.value), row.offset) for row in rows)
    expected = [row for log in logs for row in latest_rows(log.directory)]
    assert found == sorted((row[3], row[0], row[1], row[4]) for row in expected)
