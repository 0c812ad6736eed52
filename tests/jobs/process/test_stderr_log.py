"""stderr with `--log-format json`: every line of every source is an object."""

from __future__ import annotations

import json
import logging
import warnings

import pytest
from rich.console import Console

from sediment.jobs.process import stderr_log
from sediment.jobs.process.stderr_log import JSON, TEXT, as_line, log_error, log_to_stderr, stream_of_lines
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment, topic_sets

NOW_MS = 1_700_001_000_000


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def log_dir(tmp_path):
    plain = load_case("plain", tmp_path / "corpus")
    return make_log_dir(tmp_path / "logs", {plain.partition: plain.before}), topic_sets("plain", plain.configs)


def test_a_run_says_what_happens_to_each_partition_and_how_it_ended(log_dir):
    path, sets = log_dir
    outcome = sediment("compact", path, "--json", "--now-ms", NOW_MS, "--log-format", "json", *sets)
    said = lines(outcome.stderr)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in said)
    (partition,) = [line for line in said if line.get("partition") == "plain-0"]
    assert (partition["status"], partition["command"], partition["level"]) == ("compacted", "compact", "INFO")
    assert partition["bytes_before"] == outcome.partitions()["plain-0"]["bytes_before"]
    assert said[-1]["run_id"] == outcome.report["run_id"] == partition["run_id"]
    assert said[-1]["statuses"] == {"compacted": 1}


def test_an_error_that_ends_a_run_is_a_line_with_its_code(tmp_path):
    outcome = sediment("compact", tmp_path / "none", "--log-format", "json")
    assert outcome.status == 2
    (line,) = lines(outcome.stderr)
    assert line["level"] == "ERROR"
    assert line["reason_code"] == "not-a-log-directory"
    assert "no such directory" in line["message"]


def test_quiet_leaves_errors_only(log_dir):
    path, sets = log_dir
    assert sediment("compact", path, "--log-format", "json", "--quiet", "--now-ms", NOW_MS, *sets).stderr == ""
    assert len(lines(sediment("compact", path / "no", "--log-format", "json", "--quiet").stderr)) == 1


def test_without_the_option_sentences_stay_sentences(tmp_path):
    outcome = sediment("compact", tmp_path / "none")
    assert outcome.stderr.startswith("sediment: no such directory")


def test_warnings_consoles_other_programs_and_unexpected_errors_are_lines_too(capsys):
    with pytest.raises(SystemExit), log_to_stderr(JSON, quiet=False):
        warnings.warn("a warning of Python", stacklevel=1)
        Console(file=stream_of_lines()).print("told to people")
        assert json.loads(as_line(b'said by "Java"\n'))["message"] == 'said by "Java"'
        assert as_line(b"\n") == b""
        raise ZeroDivisionError("a fault of ours")
    said = lines(capsys.readouterr().err)
    assert any("a warning of Python" in line["message"] for line in said)
    assert "told to people" in [line["message"] for line in said]
    assert said[-1]["level"] == "CRITICAL"
    assert "ZeroDivisionError" in said[-1]["exc_info"]


def test_after_the_block_everything_is_as_it_was(capsys):
    handlers, level = list(logging.getLogger().handlers), logging.getLogger("sediment").level
    with log_to_stderr(JSON, quiet=False):
        pass
    assert (logging.getLogger().handlers, logging.getLogger("sediment").level) == (handlers, level)
    assert stream_of_lines() is None
    assert as_line(b"raw\n") == b"raw\n"
    with log_to_stderr(TEXT, quiet=True):
        log_error("as a sentence")
    assert capsys.readouterr().err == "sediment: as a sentence\n"


def test_the_same_warning_is_said_once(capsys):
    with log_to_stderr(JSON, quiet=False):
        for _ in range(3):
            logging.getLogger(stderr_log.__name__).warning("below the minimum")
    assert len(lines(capsys.readouterr().err)) == 1
