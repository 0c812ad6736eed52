"""Random logs, cleaned by Kafka 4.2.0's own classes and by `sediment compact`, must be equal.

SEDIMENT_CONFORMANCE_LOGS is the number of logs (500), SEDIMENT_CONFORMANCE_SEED the first seed (0).
`make conformance` and `make conformance-nightly` set them.  Coverage is printed by dimension.  A log that differs is
made smaller and written to tests/data/conformance (or $SEDIMENT_CONFORMANCE_KEPT); later runs replay it.
"""

from __future__ import annotations

import os

import pytest

from sediment.jobs.spark.session import spark_context
from tests.conformance.cases import KEPT, kept, read_kept
from tests.conformance.coverage import DIMENSIONS
from tests.conformance.differential import DROPS_EMPTY_END, EMPTY_END, EQUAL, compare_once, run_logs

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]


def test_random_logs_are_cleaned_as_kafka_cleans_them(oracle, tmp_path, capsys):
    logs = int(os.environ.get("SEDIMENT_CONFORMANCE_LOGS", "500"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    with spark_context("local[2]", "sediment conformance"):
        tally = run_logs(oracle, range(first, first + logs), tmp_path)
    with capsys.disabled():
        print(f"\n{tally}\n{tally.coverage}")
    assert not tally.differences, "\n".join(tally.differences.values())
    assert tally.outcomes[EQUAL] > logs // 4
    if logs >= 500:
        assert not [name for name in DIMENSIONS if tally.coverage.counts[name] < logs // 200]


@pytest.mark.parametrize("path", kept("cleaning"), ids=lambda path: path.stem)
def test_a_log_that_once_came_out_otherwise_comes_out_as_kafka_cleans_it(path, oracle, tmp_path):
    with spark_context("local[2]", "sediment conformance"):
        assert compare_once(oracle, read_kept(path), tmp_path / "log")


def test_the_last_batch_of_the_range_stays_without_records_as_in_the_reference(oracle, tmp_path):
    with spark_context("local[2]", "sediment conformance"):
        outcomes = compare_once(oracle, read_kept(KEPT / "cleaning-empty-end.json"), tmp_path / "log")
    assert (EMPTY_END in outcomes) == DROPS_EMPTY_END
