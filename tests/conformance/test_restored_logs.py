"""Random logs that Kafka 4.2.0 wrote, compacted, expired and restored: Kafka loads them as before the runs.

SEDIMENT_CONFORMANCE_RESTORES is the number of logs (12), SEDIMENT_CONFORMANCE_SEED the first seed (0).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conformance.logs import SPEC, random_spec
from tests.conformance.oracle import KafkaFailedError, KafkaOracle
from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import sediment, tree
from tests.jobs.originals.kept_originals import catalogues

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

PARTITION = "random-0"


def check_log(oracle: KafkaOracle, seed: int, work: Path) -> int:
    """Write the log of a seed, change it by runs, undo them, and compare; return the number of runs undone."""
    spec = {**SPEC, **random_spec(seed), "log_start": None}
    configs, now_ms = spec["configs"], spec["start_ms"]
    log_dir, kept = work / "logs", work / "kept"
    directory = log_dir / PARTITION
    written = oracle.generate(spec, directory, checkpoints=True)
    (log_dir / ".kafka_cleanshutdown").touch()
    before = tree(log_dir)

    def load(name: str) -> object:
        copy = shutil.copytree(directory, work / name / PARTITION)
        end = written.log_end_offset
        return oracle.load(copy, now_ms=now_ms, configs=configs, clean=True, recovery_point=end)

    try:
        expected = load("before")
    except KafkaFailedError:
        return 0  # Kafka cannot load every log that it wrote with a tiny index.
    sets = [f"--set={key}={value}" for key, value in configs.items() if key != "cleanup.policy"]
    size_bytes = sum(path.stat().st_size for path in directory.glob("*.log"))
    shared = ("--json", "--quiet", "--broker-defaults", f"--keep-originals={kept}")
    with inline_spark():
        compacted = sediment(
            *("compact", log_dir, *shared, "--force", f"--now-ms={now_ms + 1_000_000}", *sets),
            "--set=cleanup.policy=compact",
        )
        expired = sediment(
            *("expire", log_dir, *shared, f"--now-ms={now_ms + 1_000_000}", "--set=cleanup.policy=delete"),
            *("--set=retention.ms=-1", f"--set=retention.bytes={size_bytes // (seed % 3 + 2)}"),
        )
        for outcome in (compacted, expired):
            assert outcome.status == 0, outcome.stderr + outcome.stdout
        runs = len(catalogues(kept)) if kept.exists() else 0
        if runs:
            restored = sediment("restore", log_dir, f"--from={kept}", "--as-of=0", "--json", "--quiet", "--yes")
            assert restored.status == 0, restored.stderr + restored.stdout
    assert tree(log_dir) == before
    assert load("after") == expected
    return runs


def test_kafka_loads_a_restored_log_as_before_the_runs(oracle: KafkaOracle, tmp_path: Path, capsys) -> None:
    logs = int(os.environ.get("SEDIMENT_CONFORMANCE_RESTORES", "12"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    undone, differences = 0, []
    for seed in range(first, first + logs):
        work = tmp_path / str(seed)
        try:
            undone += check_log(oracle, seed, work)
        except (AssertionError, KafkaFailedError) as difference:
            differences.append(f"seed {seed}: {difference!r}")
        shutil.rmtree(work, ignore_errors=True)
    with capsys.disabled():
        print(f"\n{logs} logs, {undone} runs undone, {len(differences)} differences")
    assert not differences, "\n".join(differences)
    assert undone > logs // 2
