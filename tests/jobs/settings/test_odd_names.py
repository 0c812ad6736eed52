"""Directories whose names are not those of partitions: every command reports them and leaves them alone."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from sediment.jobs.datasource import register
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, sediment_process, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment

DAY_MS = 86_400_000
UUID = "0123456789abcdef0123456789abcdef"
ODD = [
    b"t-00",
    b"t-+0",
    b"old backup-1",
    b"a\nb-0",
    b"t-9999999999",
    b"t-2147483648",
    b"\xffq-0",
    b"t" * 250 + b"-0",
    b".-0",
    b"..-0",
    b"\x1b[31mred\x1b]0;title\x07-0",
    b"[bold]m-0",
    "t\u00f6pic-0".encode(),
    "t-\u0663".encode(),
    b"lost+found",
    b"-0",
    b"t-0.%s-delete\n" % UUID.encode(),
    b"t-00.%s-future" % UUID.encode(),
    b"old backup-1.%s-stray" % UUID.encode(),
    b"t-0.\x1b[2J-future",
]
WARNINGS = 10 + 1
"""One for each of the first ten, one for the rest."""

POLICIES = ("--set=t:cleanup.policy=compact,delete", "--set=good:cleanup.policy=compact,delete")
RETENTION = ("--set=t:retention.ms=1", "--set=good:retention.ms=1")
CLOCK = ("--now-ms", NOW_MS + DAY_MS)
CHECKPOINTS = ("cleaner-offset-checkpoint", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint")
COMMANDS = {
    "plan": ("plan", *POLICIES, *CLOCK),
    "compact": ("compact", "--force", *POLICIES, *CLOCK),
    "compact nothing": ("compact", "--force", "--dry-run", *POLICIES, *CLOCK),
    "expire": ("expire", *POLICIES, *RETENTION, *CLOCK),
    "recover": ("recover",),
    "recover nothing": ("recover", "--dry-run"),
}

DONE = {"compact": "compacted", "expire": "expired", "recover": "recovered"}


def log_of_three_segments(path):
    for base in (0, 20):
        batches = [batch_bytes(n, chr(97 + n % 4), value=b"%d" % n) for n in range(base, base + 20)]
        write_segment(path, base, batches, index_interval_bytes=100)
    write_segment(path, 40)
    return path


@pytest.fixture
def source(tmp_path):
    return log_of_three_segments(tmp_path / "source")


@pytest.fixture(scope="module")
def spark(sc):
    from pyspark.sql import SparkSession

    return SparkSession(sc)


@pytest.fixture
def log_dir(tmp_path, source):
    """Return two partitions, and a directory of every odd name that holds the same log."""
    log_dir = make_log_dir(tmp_path / "logs", {"good-0": source, "t-0": source}, clean=False)
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"good-0": 40, "t-0": 40})
    for name in ODD:
        shutil.copytree(source, log_dir / os.fsdecode(name))
    return log_dir


def odd_trees(log_dir):
    return {name: tree(log_dir / os.fsdecode(name)) for name in ODD}


def is_about(record, log_dir):
    return record.levelno == logging.WARNING and record.getMessage().startswith(f"{log_dir}: skipped: ")


def warnings_about(caplog, log_dir):
    return {record.getMessage() for record in caplog.records if is_about(record, log_dir)}


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_names_are_reported_left_alone_and_absent_from_checkpoints(log_dir, caplog, command):
    before = odd_trees(log_dir)
    outcome = sediment(*COMMANDS[command][:1], log_dir, "--json", *COMMANDS[command][1:])
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    assert "Traceback" not in outcome.stderr
    assert sorted(outcome.partitions()) == ["good-0", "t-0"]
    assert odd_trees(log_dir) == before
    told = warnings_about(caplog, log_dir)
    assert len(told) == WARNINGS
    assert all(sentence.isprintable() for sentence in told)
    written = {name: read_checkpoint(log_dir / name) for name in CHECKPOINTS if (log_dir / name).exists()}
    assert written and all(set(entries) <= {"good-0", "t-0"} for entries in written.values())
    if command in ("compact", "expire", "recover"):
        assert {report["status"] for report in outcome.report["partitions"]} == {DONE[command]}


def test_an_odd_name_is_a_warning_once_in_a_run(log_dir):
    shutil.rmtree(log_dir / "t-00")
    outcome = sediment_process("expire", log_dir, "--dry-run", *POLICIES, *RETENTION, *CLOCK)
    assert outcome.status == 0, outcome.stderr
    lines = [line for line in outcome.stderr.splitlines() if ": skipped: " in line]
    assert len(lines) == len(set(lines)) == WARNINGS
    assert "\x1b" not in outcome.stderr + outcome.stdout


def test_an_odd_name_is_not_a_partition_even_if_kafka_accepts_it(tmp_path, source, caplog):
    log_dir = make_log_dir(tmp_path / "logs", {"good-0": source, "t-00": source})
    outcome = sediment("plan", log_dir, "--json", *POLICIES)
    assert list(outcome.partitions()) == ["good-0"]
    (told,) = warnings_about(caplog, log_dir)
    assert "the name of that partition is t-0" in told


def test_an_output_holds_partitions_only(log_dir, tmp_path, caplog):
    for number, given in enumerate((str(log_dir), f"file://{log_dir}")):
        output = tmp_path / f"output-{number}"
        outcome = sediment("compact", given, "--output", output, "--force", "--json", *POLICIES, *CLOCK)
        assert outcome.status == 0, outcome.stderr
        assert sorted(path.name for path in output.iterdir() if path.is_dir()) == ["good-0", "t-0"]
        assert read_checkpoint(output / "cleaner-offset-checkpoint").keys() == {"good-0", "t-0"}
    assert len(warnings_about(caplog, log_dir)) == WARNINGS
    # pyarrow cannot name the one that is not UTF-8.
    assert len(warnings_about(caplog, f"file://{log_dir}")) == WARNINGS


def test_verify_compares_partitions_only(log_dir, tmp_path, caplog):
    before = shutil.copytree(log_dir, tmp_path / "before")
    outcome = sediment("verify", before, log_dir, "--json", *POLICIES, *CLOCK)
    assert outcome.status == 0, outcome.stderr
    assert sorted(outcome.partitions()) == ["good-0", "t-0"]
    assert len(warnings_about(caplog, log_dir)) == len(warnings_about(caplog, before)) == WARNINGS


def test_dump_shows_partitions_only_and_the_others_where_they_are_named(log_dir, caplog):
    outcome = sediment("dump", log_dir, "--what", "segments", "--json")
    assert outcome.status == 0, outcome.stderr
    assert {line.split('"topic":"')[1].split('"')[0] for line in outcome.stdout.splitlines()} == {"good", "t"}
    assert len(warnings_about(caplog, log_dir)) == WARNINGS
    for name in ODD:
        for shown in ((), ("--json",)):
            outcome = sediment("dump", log_dir / os.fsdecode(name), "--what", "records", *shown)
            assert outcome.status == 0, outcome.stderr
            assert len(outcome.stdout.splitlines()) >= 40
            assert "\x1b" not in outcome.stdout + outcome.stderr


def test_the_data_source_reads_partitions_only(log_dir, spark):
    register(spark)
    read = spark.read.format("kafka-log").load(str(log_dir))
    assert {(row.topic, row.partition) for row in read.select("topic", "partition").distinct().collect()} == {
        ("good", 0),
        ("t", 0),
    }
