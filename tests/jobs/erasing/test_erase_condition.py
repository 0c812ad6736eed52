"""`sediment erase --where`: a condition of Spark SQL, and older records of the keys that it matches."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.erasing.condition_query import matching_offsets
from sediment.segment_io.errors import UsageError
from tests.jobs.erasing.erased_logs import STATED, erase, make_logs, records
from tests.jobs.log_dirs import sediment, tree
from tests.segments import NOW_MS, write_segment
from tests.twin.batches import Record, encode_batch


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return make_logs(tmp_path / "logs")


def test_a_condition_says_which_records(logs):
    found = erase(logs, "--where=key = 'a' AND offset >= 2", *STATED)
    assert [offset for offset, (_, value) in records(logs / "people-0").items() if value is None] == [2, 4]
    assert set(records(logs / "visits-0")) == {0, 1, 2}
    assert [found["people-0"][name] for name in ("records_scanned", "records_matched")] == [6, 2]


def test_a_record_is_not_dropped_from_a_compacted_log_if_an_older_one_of_its_key_stays(logs):
    before = tree(logs)
    arguments = ("--where=cast(key as string) in ('a', 'd') AND offset > 2", "--action=drop", *STATED)
    counted = sediment("erase", logs, "--json", "--dry-run", *arguments)
    outcome = sediment("erase", logs, "--json", "--yes", "--partition=people-0", *arguments)
    for each in (counted, outcome):
        people = each.partitions()["people-0"]
        assert (each.status, people["status"], people["reason_code"]) == (1, "failed", "older-records")
        assert people["keys_with_older_records"] == 1
    assert tree(logs) == before


def test_all_versions_drops_the_older_records_too(logs):
    erase(logs, "--where=key = 'a' AND offset > 2", "--action=drop", "--all-versions", *STATED)
    assert set(records(logs / "people-0")) == {1, 3, 5}
    assert set(records(logs / "visits-0")) == {0, 1, 2}


@pytest.mark.parametrize(
    ("condition", "text"), [("nonsense = 'secret subject'", "UNRESOLVED_COLUMN"), ("secret subject ((", "PARSE")]
)
def test_a_condition_that_spark_refuses_changes_nothing_and_is_not_quoted(logs, condition, text, capfd):
    before = tree(logs)
    outcome = sediment("erase", logs, "--yes", f"--where={condition}", *STATED)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert text in outcome.stderr
    assert "subject" not in outcome.stderr + "".join(capfd.readouterr())
    assert tree(logs) == before


def test_a_value_in_a_key_selects_every_spelling_of_the_key(tmp_path):
    old, new = b'{"subject":"s","version":1}', b'{"version":1,"subject":"s"}'
    other = b'{"version":1,"subject":"t"}'
    contents = ((old, b"schema"), (other, b"schema"), (new, None), (b'{"keytype":"NOOP"}', None))
    batches = [
        encode_batch([Record(n, NOW_MS, key, value)], base_offset=n, leader_epoch=0)
        for n, (key, value) in enumerate(contents)
    ]
    write_segment(tmp_path / "logs" / "_schemas-0", 0, batches)
    write_segment(tmp_path / "logs" / "_schemas-0", len(batches), [])
    condition = "--where=get_json_object(CAST(key AS STRING), '$.subject') = 's'"
    erase(tmp_path / "logs", "--partition=_schemas-0", condition, "--action=drop", "--broker-defaults")
    assert set(records(tmp_path / "logs" / "_schemas-0")) == {1, 3}


def test_an_expression_that_cannot_be_computed_matches_nothing(logs, tmp_path):
    (tmp_path / "condition.sql").write_text("CAST(CAST(key AS STRING) AS INT) = 1 OR key = 'x'\n")
    found = erase(logs, f"--where=@{tmp_path}/condition.sql", *STATED)
    assert (found["people-0"]["status"], found["visits-0"]["records_erased"]) == ("unchanged", 1)
    assert set(records(logs / "visits-0")) == {0, 2, 3}


# ------------------------------------------------------------------------------------------- conditions that may differ
@pytest.fixture(scope="module")
def spark(sc):
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


DIFFERS = "so a run could erase other records than its dry run showed"


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("rand() < 0.5", "has rand,"),
        ("uuid() > 'a'", "has uuid,"),
        ("shuffle(array(1, 2))[0] = 1", "has shuffle,"),
        ("input_file_name() = 'secret'", "has input_file_name,"),
        ("monotonically_increasing_id() < 3", "has monotonically_increasing_id,"),
        ("reflect('java.lang.System', 'getenv', 'HOME') = 'secret'", "has reflect,"),
        ("java_method('java.lang.System', 'nanoTime') > 1", "has java_method,"),
        ("try_reflect('java.lang.System', 'getenv', 'HOME') = 'secret'", "has reflect,"),
        ("exists(array(1), x -> x < rand())", "has rand,"),
        ("topic = user", "has current_user,"),
        ("timestamp < now() - INTERVAL 3 DAYS", "has now,"),
        ("unix_timestamp() > 3", "has current_timestamp,"),
        ("timestamp < current_date()", "has current_date,"),
        ("timestamp < TIMESTAMP 'now'", "has a date or time without a year,"),
        ("timestamp < DATE 'today'", "has a date or time without a year,"),
        ("timestamp < '12:00:00'", "has a constant date or time without a year,"),
        ("to_timestamp(concat('no', 'w')) > timestamp", "has a constant date or time without a year,"),
        ("exists(SELECT * FROM csv.`/etc/passwd`)", "has a subquery,"),
        ("offset IN (SELECT length(value) FROM text.`/secret/no/such/file`)", "has a subquery,"),
        ("(SELECT count(*) FROM text.`/etc/passwd`) > 0", "has a subquery,"),
    ],
)
def test_a_condition_that_may_select_others_in_another_run_or_reads_something_else_is_refused(
    spark, logs, condition, what
):
    with pytest.raises(UsageError) as refused:
        matching_offsets(spark, condition, [logs / "people-0"], group="g")
    assert what in refused.value.what
    assert "subquery" in what or DIFFERS in refused.value.what
    assert "secret" not in str(refused.value)


def test_a_function_of_the_record_alone_is_a_condition(spark, logs):
    parts = (
        "key = 'a' AND offset BETWEEN 0 AND 1",
        "timestamp > '2000-01-01' AND timestamp < TIMESTAMP '2999-12-31 00:00:00' AND pi() > e()",
        "exists(array(1, 2), x -> x > offset) AND to_date('31.12.2025', 'dd.MM.yyyy') > DATE '2025-01-01'",
        "coalesce(try_to_number(CAST(value AS STRING), '9'), offset) = 0",
    )
    found = matching_offsets(spark, " AND ".join(f"({each})" for each in parts), [logs / "people-0"], group="g")
    assert found["people-0"].tolist() == [0]


def test_a_condition_that_is_refused_changes_nothing(logs):
    before = tree(logs)
    outcome = sediment("erase", logs, "--yes", "--json", "--where=rand() < 0.5", *STATED)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert f"--where has rand, which is not a function of the record alone, {DIFFERS}" in outcome.stderr
    assert tree(logs) == before
