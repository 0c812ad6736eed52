"""Paths that are not UTF-8, or that contain special characters of terminals, Delta tables or format strings."""

from __future__ import annotations

import json
import os

import pytest
from rich.table import Table

from sediment.jobs.delta_lake import ledger
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.run_report import result_console
from tests.jobs.log_dirs import make_log_dir, sediment, sediment_process, tree
from tests.segments import NOW_MS, batch_bytes, write_segment

NOT_UTF_8 = os.fsdecode(b"l\xffgs")
NO_TABLE = ["a\nb", "\x1b[2Jred", "[", "b]", "^|", "a\\b", "100%41", NOT_UTF_8]
POLICY = ("--set=t:cleanup.policy=compact,delete", "--set=t:retention.ms=-1", "--now-ms", NOW_MS)


@pytest.fixture
def source(tmp_path):
    for base in (0, 20):
        batches = [batch_bytes(n, "ab"[n % 2], timestamp=NOW_MS) for n in range(base, base + 20)]
        write_segment(tmp_path / "source", base, batches)
    return tmp_path / "source"


@pytest.fixture
def log_dir(tmp_path, source):
    return make_log_dir(tmp_path / NOT_UTF_8, {"t-0": source})


@pytest.mark.parametrize(
    "command",
    [("plan",), ("expire",), ("recover",), ("compact", "--force"), ("compact", "--force", "--strategy=split")],
    ids=" ".join,
)
def test_a_log_directory_that_is_not_utf_8_is_worked_on_and_accounted_for(log_dir, tmp_path, sc, command):
    page, metrics, path = (tmp_path / name for name in ("page.html", "metrics.prom", "ledger"))
    accounts = ("--report", page, "--metrics", metrics, "--ledger", path)
    outcome = sediment(command[0], log_dir, *command[1:], *POLICY, *accounts, "--json")
    assert outcome.status == 0, outcome.stderr
    assert "could not" not in outcome.stderr and "not in the ledger" not in outcome.stderr
    assert outcome.partitions()["t-0"]["log_dir"] == str(log_dir)
    assert r"l\udcffgs" in page.read_text(encoding="utf-8")
    assert f'command="{command[0]}"' in metrics.read_text(encoding="utf-8")
    (run,) = sediment("history", path, "--json").report["runs"]
    assert run["log_dirs"] == [str(tmp_path / r"l\udcffgs")]


def test_dump_shows_a_path_that_is_not_utf_8(log_dir, tmp_path):
    outcome = sediment("dump", log_dir, "--what", "segments", "--json")
    assert outcome.status == 0, outcome.stderr
    paths = [json.loads(line)["path"] for line in outcome.stdout.splitlines()]
    assert paths[0] == str(tmp_path / r"l\udcffgs" / "t-0" / f"{0:020d}.log")
    assert sediment("dump", log_dir / "t-0", "--what", "segments", "--to", tmp_path / "tables").status == 0


def test_an_output_from_or_to_a_path_that_is_not_utf_8_is_refused_before_anything_is_written(log_dir, source, tmp_path):
    other = make_log_dir(tmp_path / "other", {"t-0": source})
    before = tree(tmp_path)
    for given, output in ((log_dir, tmp_path / "output"), (other, tmp_path / f"output{NOT_UTF_8}")):
        outcome = sediment("compact", given, "--output", output, *POLICY)
        assert outcome.status == 2
        assert "this path is not UTF-8" in outcome.stderr and outcome.stderr.strip().isprintable()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", NO_TABLE, ids=ascii)
def test_a_path_that_no_delta_table_can_have_is_refused_before_the_run(source, tmp_path, name):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source})
    before = tree(tmp_path)
    for command in (
        ("compact", log_dir, *POLICY, "--ledger", tmp_path / name),
        ("expire", log_dir, *POLICY, "--archive", tmp_path / name),
        ("history", tmp_path / name),
    ):
        outcome = sediment(*command)
        assert outcome.status == 2, outcome.stdout
        assert "no Delta table can have this path" in outcome.stderr and outcome.stderr.strip().isprintable()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["a b", "?", "#", "%", "*", "{}", "'\"", ":", "%s", "=", "größe"])
def test_a_ledger_of_any_other_name_is_written_where_it_is_named(tmp_path, name):
    report = {"schema": 1, "command": "plan", "run_id": "one", "now_ms": NOW_MS, "partitions": []}
    ledger.check(str(tmp_path / name), ())
    ledger.append(json.dumps(report), str(tmp_path / name))
    assert (tmp_path / name / "runs" / "_delta_log").is_dir()
    assert [run["run_id"] for run in sediment("history", tmp_path / name, "--json").report["runs"]] == ["one"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2Jred", "[bold]", "{}%s", NOT_UTF_8], ids=ascii)
def test_pages_and_metrics_are_written_to_files_of_any_name(source, tmp_path, name):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source})
    page, metrics = tmp_path / f"r{name}", tmp_path / f"m{name}"
    outcome = sediment("expire", log_dir, *POLICY, "--report", page, "--metrics", metrics)
    assert outcome.status == 0, outcome.stderr
    assert "could not" not in outcome.stderr
    assert page.stat().st_size and metrics.stat().st_size


def test_a_warning_is_one_line_in_which_a_terminal_obeys_nothing(source, tmp_path):
    log_dir = make_log_dir(tmp_path / "l\x1b[2Jo\ngs", {"t-0": source}, clean=False)
    (log_dir / "\x1b]0;title\x07-0").mkdir()
    config = tmp_path / "my\x1b[31m.properties"
    config.write_text("log.\\u001b[31mred=5\n")
    outcome = sediment_process("expire", log_dir, *POLICY, "--config", config)
    assert outcome.status == 0, outcome.stderr
    assert "\x1b" not in outcome.stderr + outcome.stdout and "\x07" not in outcome.stderr
    assert r"l\x1b[2Jo\ngs: skipped: directory '\x1b]0;title\x07-0'" in outcome.stderr
    assert "my\\x1b[31m.properties: unknown key of 12 characters (not shown" in outcome.stderr


@pytest.mark.parametrize("console", [result_console, error_console], ids=lambda console: console.__name__)
def test_a_name_is_not_taken_for_markup_an_emoji_or_a_line_of_its_own(capsys, console):
    shown = Table()
    shown.add_row("[/x] [bold]b[/bold] :fire: a\n1 failed")
    console().print("[/x] [bold]b[/bold] :fire: a\n1 failed", soft_wrap=True)
    console().print(shown)
    sentence, *table = "".join(capsys.readouterr()).splitlines()
    assert sentence == r"[/x] [bold]b[/bold] :fire: a\n1 failed"
    assert any(r"[/x] [bold]b[/bold] :fire: a\n1 failed" in line for line in table)


@pytest.mark.parametrize(
    "arguments",
    [
        ("expire", "{loop}"),
        ("expire", "{log_dir}", "--keep-originals={loop}"),
        ("expire", "{log_dir}", "--report={loop}/page.html"),
        ("recover", "{log_dir}", "--keep-originals={loop}", "--yes"),
        ("restore", "{log_dir}", "--from={loop}", "--as-of=0", "--yes"),
        ("clone", "{log_dir}", "--to={loop}"),
    ],
    ids=" ".join,
)
def test_a_link_to_itself_is_refused_in_one_sentence(log_dir, tmp_path, arguments):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    before = tree(log_dir)
    outcome = sediment(*(each.format(loop=loop, log_dir=log_dir) for each in arguments))
    assert outcome.status in (1, 2) and "this is a bug" not in outcome.stderr
    assert outcome.stderr.startswith(("sediment: ", "Usage: ")), outcome.stderr
    assert tree(log_dir) == before
