"""`snapshot` on corrupted log directories: it reports the corruption, and has the other partitions."""

from __future__ import annotations

import pytest

from tests.jobs.log_dirs import make_log_dir, sediment
from tests.jobs.snapshots import session_with_delta
from tests.jobs.test_untrusted_directories import EXPECTED, SPOILED, latest_values, log_of_three_segments
from tests.segments import NOW_MS

EVERY_RUN = ("a pipe in the place of a segment", "a huge sparse segment", "names that are no text")
pytestmark = [pytest.mark.delta, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(sc):
    with session_with_delta() as session:
        yield session


CASES = [
    pytest.param(spoil, id=name, marks=[] if name in EVERY_RUN else [pytest.mark.fuzz])
    for name, spoil in SPOILED.items()
]


@pytest.mark.parametrize("spoil", CASES)
def test_a_corrupted_directory_is_reported_and_the_table_holds_its_readable_records(spark, tmp_path, spoil):
    source = log_of_three_segments(tmp_path / "source")
    log_dir = make_log_dir(tmp_path / "logs", {"good-0": source, "t-0": source})
    spoil(log_dir)
    outcome = sediment("snapshot", log_dir, "--to", tmp_path / "table", "--json", "--quiet", "--now-ms", NOW_MS)
    assert outcome.status in (0, 1, 2), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.status == 0 or len(outcome.stderr) + len(outcome.stdout) > 20
    assert latest_values(log_dir / "good-0") == EXPECTED
    if outcome.status < 2 and outcome.stdout.startswith("{"):
        rows = spark.read.format("delta").load(str(tmp_path / "table")).where("topic = 'good'").collect()
        assert {bytes(row.key): bytes(row.value) for row in rows} == EXPECTED
