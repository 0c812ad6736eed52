"""Kafka's log manager on a directory from `compact --output`, compared with one that was compacted in place."""

import shutil
from pathlib import Path

import pytest

from tests.conformance.oracle import KafkaOracle
from tests.corpus import load_case
from tests.jobs.log_dirs import corpus_log_dir, sediment, write_checkpoint

CASES = ("plain", "transactions", "everything", "tombstones", "zstd")
NOW_MS = 1_800_000_000_000


@pytest.mark.conformance
@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_opens_an_output_as_it_opens_the_directory_that_was_compacted_in_place(
    clean: bool, oracle: KafkaOracle, tmp_path: Path
):
    cases = [load_case(name, tmp_path / "cases") for name in CASES]
    source, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases], clean=clean)
    ends = {case.partition: 0 if clean else 1 for case in cases}
    write_checkpoint(source / "log-start-offset-checkpoint", dict.fromkeys(ends, 0))
    if clean:
        write_checkpoint(source / "recovery-point-offset-checkpoint", dict.fromkeys(ends, 0))
    in_place = shutil.copytree(source, tmp_path / "in-place")
    output = tmp_path / "output"
    arguments = ("--force", "--now-ms", NOW_MS, *sets)
    for outcome in (
        sediment("compact", source, "--output", output, *arguments),
        sediment("compact", in_place, *arguments),
    ):
        assert outcome.status == 0, outcome.stderr
    topics = {case.partition.rpartition("-")[0]: case.configs for case in cases}
    theirs = oracle.broker(shutil.copytree(output, tmp_path / "opened"), now_ms=NOW_MS, topics=topics)
    in_place_run = oracle.broker(in_place, now_ms=NOW_MS, topics=topics)
    assert set(theirs.partitions) == {case.partition for case in cases}
    assert theirs.partitions == in_place_run.partitions
    verified = sediment("verify", source, output, *arguments[1:])
    assert verified.status == 0, verified.stdout
