"""The public functions on logs that Kafka wrote: results, errors, sessions of the caller, threads and Ctrl-C."""

from __future__ import annotations

import ast
import html
import inspect
import json
import os
import pathlib
import pickle
import pydoc
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sediment
from sediment import api
from sediment.engine.directory.lock import RUN_TOKEN_FILE, DirectoryLock
from sediment.jobs.cli import COMMANDS, main
from sediment.jobs.command_line.calls import finish_on_interrupt
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.declaration import DeclaredOption, declared_options
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.shared_options import GivenOptions
from sediment.jobs.planning.report import PartitionPlan
from sediment.jobs.spark.session import create_session, spark_context
from sediment.verification.report import Difference, PairReport
from tests.corpus import load_case
from tests.jobs import log_dirs as command_line
from tests.jobs.log_dirs import make_log_dir, tree
from tests.segments import batch_bytes, write_segment
from tests.waiting import wait_until


def command_of(name: str) -> ConfiguredCommand:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, ConfiguredCommand)
    return command


PAGE = Path(__file__).parent.parent / "docs" / "reference" / "python.md"
METHODS = {
    name: command_of(name).own
    for name in (
        *("adopt", "clone", "compact", "doctor", "dump", "erase", "expire", "plan"),
        *("recover", "reencode", "restore", "snapshot", "verify"),
    )
}
FUNCTIONS = {name: command_of(name).own for name in ("history", "originals", "vacuum")}
OF_OTHER_METHODS = {"check", "public_key"}  # of check_clone and check_evidence, so that each method has one result
SHARED = frozenset(api.SharedOptions.__annotations__)
STATED = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0, "plain:delete.retention.ms": 0}
EXPIRED = {"plain:cleanup.policy": ["delete"], "plain:retention.ms": 1, "plain:local.retention.ms": -2}
HOSTILE = "<script>alert('1')</script>\"&\u2028"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_context("local[2]", "sediment tests"):
        yield SparkSession.builder.getOrCreate()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_case("plain", tmp_path_factory.mktemp("corpus")).before


@pytest.fixture
def log_dir(written: Path, tmp_path: Path) -> Path:
    return make_log_dir(tmp_path / "logs", {"plain-0": written, "plain-1": written})


# ------------------------------------------------------------------------------------------------ the public interface
def declared(kind: type) -> dict[str, DeclaredOption]:
    """Return the options that Python has, by keyword."""
    return {each.keyword: each for each in declared_options(kind) if not each.option.of_terminal}


def hint_of(each: DeclaredOption) -> str:
    """Return the type that a signature gives an option."""
    if each.keyword == "settings":
        return "Settings"
    if each.keyword == "renames":
        return "Mapping[str, str] | Texts"
    if each.choices:
        text = f"Literal[{', '.join(map(repr, each.choices))}]"
    elif each.is_many or each.option.joined:
        text = "Paths" if each.type is pathlib.Path or each.keyword in PATHS else "Texts"
    elif each.keyword in PATHS or each.type is pathlib.Path:
        text = "Path"
    else:
        text = each.type.__name__ if each.type in (bool, int, float) else "str"
    has_none = each.default is None and not each.option.none and not each.is_many and not each.option.is_required
    return f"{text} | None" if has_none else text


PATHS = {"output", "archive", "verdicts", "ledger", "to", "path", "replay"}
"""Options whose values are texts, because they may be URIs, and that also take a path."""


@pytest.mark.parametrize(("name", "kind"), (METHODS | FUNCTIONS).items())
def test_a_signature_has_the_names_types_and_defaults_of_the_declaration(name: str, kind: type) -> None:
    function = getattr(sediment.LogDirectories if name in METHODS else sediment, name)
    parameters = dict(inspect.signature(function).parameters)
    options = declared(kind)
    if name in METHODS:
        del parameters["self"]
        options = {keyword: each for keyword, each in options.items() if keyword not in {*SHARED, "log_dirs"}}
    if name == "verify":
        del parameters["before"]
    options = {keyword: each for keyword, each in options.items() if keyword not in OF_OTHER_METHODS | {"paths"}}
    assert parameters.keys() == options.keys()
    for keyword, each in options.items():
        is_required = each.option.is_required or (name, keyword) == ("clone", "to")
        hint = hint_of(each).removesuffix(" | None" if (name, keyword) == ("clone", "to") else "\0")
        found = parameters[keyword].annotation
        assert found in (hint, "str | int | None" if keyword == "as_of" else hint), keyword
        default = inspect.Parameter.empty if is_required else each.default_text
        assert parameters[keyword].default == default, keyword


def test_shared_options_have_the_names_and_types_of_the_declaration() -> None:
    options = declared(GivenOptions)
    assert api.SharedOptions.__annotations__.keys() - {"spark"} == options.keys() - {"log_dirs"}
    for keyword, each in options.items():
        if keyword != "log_dirs":
            assert api.SharedOptions.__annotations__[keyword].__forward_arg__ == hint_of(each), keyword


def test_the_methods_and_functions_are_the_commands_that_work_on_logs_and_runs() -> None:
    assert set(COMMANDS) - METHODS.keys() - FUNCTIONS.keys() == {"demo", "serve", "setup"}


@pytest.mark.parametrize("name", [*METHODS, *FUNCTIONS, "LogDirectories"])
def test_help_shows_the_text_of_every_option_and_no_option_of_the_command_line(name: str) -> None:
    function = getattr(sediment.LogDirectories if name in METHODS else sediment, name)
    text = inspect.getdoc(function) or ""
    kind = GivenOptions if name == "LogDirectories" else (METHODS | FUNCTIONS)[name]
    shown = set(re.findall(r"^    (\w+): ", text.split("Raises:")[0], re.MULTILINE))
    keywords = SHARED if name == "LogDirectories" else set(inspect.signature(function).parameters)
    assert shown == keywords & declared(kind).keys()
    assert not re.search(r"(?<![\w-])--(?!json|describe|entity-type)[a-z]|LOG_DIR", text)
    if name != "LogDirectories":
        assert " ".join(text.split()) in " ".join(pydoc.render_doc(function, renderer=pydoc.plaintext).split())


def test_each_result_is_a_public_class() -> None:
    for name in [*METHODS, *FUNCTIONS, "check_clone", "check_evidence"]:
        function = getattr(sediment.LogDirectories if name not in FUNCTIONS else sediment, name)
        assert function.__annotations__["return"] in sediment.__all__


def test_shared_options_can_be_replaced_for_some_calls() -> None:
    logs = sediment.LogDirectories("a", "b", topics="t", now_ms=1)
    other = logs.with_options(now_ms=2, report="r.html")
    assert repr(other) == "LogDirectories('a', 'b')"
    assert other._keywords({}) == {"log_dirs": ("a", "b"), "topics": "t", "now_ms": 2, "report": "r.html"}
    assert logs._keywords({}) == {"log_dirs": ("a", "b"), "topics": "t", "now_ms": 1}


class _OddPath(os.PathLike):
    """A path whose text is something else; without `text`, it has none any more."""

    def __init__(self, text: Any) -> None:
        self._text = text

    def __fspath__(self) -> Any:
        if self._text is None:
            raise RuntimeError("closed")
        return self._text


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda logs: logs.compact(forced=True), "compact() has no option 'forced'; did you mean 'force'?"),
        (lambda logs: logs.plan("x"), "plan() takes its options by name; write plan(option=value)"),
        (lambda logs: logs.clone(), "clone() needs 'to'; give to=…"),
        (lambda logs: logs.doctor(fix=True), "doctor() has no option 'fix'; it has no options"),
        (
            lambda logs: logs.plan(topics="t"),
            "plan() has no option 'topics'; give it to LogDirectories(), or call with_options(topics=…)",
        ),
        (
            lambda logs: sediment.LogDirectories(topic="t"),
            "LogDirectories() has no option 'topic'; did you mean 'topics'?",
        ),
        (
            lambda logs: sediment.LogDirectories(["a"]),
            "LogDirectories() takes paths, not list; give each directory as an argument of its own: "
            "LogDirectories(*paths)",
        ),
        (lambda logs: sediment.vacuum("x", older="7d"), "vacuum() has no option 'older'; did you mean 'older_than'?"),
        (lambda logs: logs.compact(force="yes"), "force is 'yes'; give True or False"),
        (
            lambda logs: logs.compact(keep_before=["a"]),
            "keep_before is a list; give keep_before one text, number or path",
        ),
        (lambda logs: logs.compact(output=True), "output is True; give output one text, number or path"),
        (lambda logs: logs.with_options(config=5).plan(), "config is 5; give config a path"),
        (lambda logs: logs.with_options(metadata=5).plan(), "metadata is 5; give metadata a path"),
        (lambda logs: logs.with_options(partitions=b"t-0").plan(), "partitions is b't-0'; give partitions one text"),
        (lambda logs: logs.compact(keep_before="a\0"), "keep_before contains a NUL character; correct the argument"),
        (lambda logs: logs.with_options(now_ms=1.5).plan(), "now_ms is 1.5; give now_ms a whole number"),
        (
            lambda logs: sediment.LogDirectories("/" + "a" * 5000).plan(),
            "log_dirs: this path has 5001 bytes; a path has at most 4095, and a name in it at most 255",
        ),
        (lambda logs: logs.with_options(report="a" * 256).plan(), "report: this path has 256 bytes; a path has at"),
        (lambda logs: logs.compact(keep_before=_OddPath(5)), "keep_before is no path: expected _OddPath.__fspath__()"),
        (lambda logs: sediment.LogDirectories(_OddPath(None)).plan(), "log_dirs is no path: closed; give log_dirs as"),
        (
            lambda logs: logs.with_options(topics="none").plan(),
            "topics='none' matches no topic of",
        ),
        (
            lambda logs: logs.compact(output="o", keep_originals="k"),
            "output excludes keep_originals: the source keeps them; leave out one of them",
        ),
        (
            lambda logs: logs.compact(strategy="split", key_equality="exact"),
            "strategy='split' excludes key_equality='exact', because split tasks exchange hashes, not keys; leave out",
        ),
        (lambda logs: sediment.LogDirectories().plan(), "no log directory is given"),
        (lambda logs: logs.restore(originals="o"), "restore needs either run=ID or as_of=TIME"),
        (lambda logs: logs.restore(originals="o", as_of="now"), "as_of='now' is not a time"),
        (lambda logs: logs.erase(), "erase needs exactly one of keys_file, where and verdicts; give one of them"),
        (
            lambda logs: sediment.vacuum("x", older_than="1h"),
            "older_than 1h is less than 24 hours; give at least 24h, or force",
        ),
        (
            lambda logs: logs.with_options(settings={"retention": 1}).plan(),
            "unknown key 'retention' in settings; the nearest known key is retention.ms",
        ),
        (lambda logs: logs.verify("b", since_ms=-1), "since_ms: -1 is not in the range"),
        (
            lambda logs: sediment.LogDirectories("a", "b").verify("c"),
            "verify() compares one log directory with `before`, and 2 are given; make LogDirectories(directory)",
        ),
        (lambda logs: logs.with_options(topics="t").dump(), "dump() selects no topics; give partitions='TOPIC-*'"),
    ],
)
def test_wrong_names_and_values_are_one_sentence_in_the_terms_of_python(
    call: Callable[[Any], object], sentence: str, tmp_path: Path
) -> None:
    write_segment(tmp_path / "logs" / "t-0", 0, [batch_bytes(0, "k")])
    with pytest.raises(sediment.UsageError) as raised:
        call(sediment.LogDirectories(tmp_path / "logs"))
    assert sentence in str(raised.value)
    assert "--" not in str(raised.value) and "\n" not in str(raised.value)


def test_the_import_is_quick_and_names_are_loaded_when_they_are_used() -> None:
    slow = {"pyspark", "numba", "pyarrow", "pandas", "numpy", "click", "rich"}
    source = f"import sys, sediment; dir(sediment); print(sorted({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_type_checkers_and_the_running_program_see_the_same_names() -> None:
    module = ast.parse(Path(sediment.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for block in module.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*typed, "__version__"} == set(sediment.__all__)
    for name, source in typed.items():
        assert getattr(sediment, name) is getattr(sys.modules[str(source)], name)
    assert set(sediment.__all__) <= set(dir(sediment))
    with pytest.raises(AttributeError, match="no attribute 'compress'"):
        _ = sediment.compress


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(sediment.__file__).with_name("py.typed").is_file()


# ---------------------------------------------------------------------------------------------------------- the results
def test_without_a_session_each_call_starts_and_stops_its_own(log_dir: Path) -> None:
    """Run before the tests with the fixture `spark`; with a context of other tests it is that one which is used."""
    from pyspark import SparkContext

    handler, active = signal.getsignal(signal.SIGINT), SparkContext._active_spark_context
    for _ in range(2):
        report = sediment.LogDirectories(log_dir, settings=STATED, master="local[2]").plan()
        assert [each.status for each in report.partitions] == ["cleanable", "cleanable"]
        assert SparkContext._active_spark_context is active
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_programs_of_the_page_print_what_it_shows_and_change_no_setting_of_the_session(
    written: Path,
    tmp_path: Path,
    spark: SparkSession,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = dict(spark.conf.getAll)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    make_log_dir(tmp_path / "kafka-logs", {"plain-0": written})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    programs = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == PAGE.read_text(encoding="utf-8").count("```python") > 3
    for program, printed in programs:
        if ".verify(" in program:
            continue  # test_verify.py has it; here it would take longer than all others together
        exec(compile(program, str(PAGE), "exec"), names)
        assert capfd.readouterr().out == printed
    assert spark.range(3).count() == 3
    assert dict(spark.conf.getAll) == before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_segments_expire_without_a_question_once_they_are_not_only_counted(log_dir: Path) -> None:
    options: dict[str, Any] = {"settings": EXPIRED, "partitions": ["plain-1"], "now_ms": 1 << 42}
    only_counted = sediment.LogDirectories(log_dir, **options).expire(dry_run=True)
    assert only_counted.dry_run and len(list((log_dir / "plain-1").glob("*.log"))) == 6
    expired = sediment.LogDirectories(log_dir, **options).expire()
    assert [each.segments for each in expired.partitions] == [each.segments for each in only_counted.partitions]
    assert len(list((log_dir / "plain-1").glob("*.log"))) == 1
    again = sediment.LogDirectories(log_dir, **options).expire()
    assert [each.status for each in again.partitions] == ["skipped"]


def test_rows_are_arrow_and_pandas_with_the_same_types_whether_there_are_any_or_not(log_dir: Path) -> None:
    report = sediment.LogDirectories(log_dir, settings=EXPIRED, now_ms=1 << 42).expire(dry_run=True)
    table, frame = report.to_arrow(), report.to_pandas()
    assert isinstance(table, pa.Table) and isinstance(frame, pd.DataFrame)
    assert table.schema.field("segments").type == pa.list_(pa.int64())
    assert table.column("deleted_segments")[0].as_py()[0] == {"base_offset": 0, "bytes": 38669, "rule": "retention.ms"}
    assert frame["log_end_offset"].dtype == pd.Int64Dtype() and frame["log_end_offset"].tolist() == [2000, 2000]
    assert frame["messages_archived"].isna().all()
    empty = sediment.LogDirectories(
        log_dir, settings=EXPIRED, partitions="other-*", allow_empty_selection=True
    ).expire()
    assert empty.to_arrow().schema == table.schema and len(empty.to_pandas()) == 0


def test_every_report_has_a_column_for_each_field_of_its_json() -> None:
    for kind in (
        *(sediment.PlanReport, sediment.CompactionRunReport, sediment.ExpiryRunReport),
        *(sediment.RecoveryRunReport, sediment.SnapshotReport, sediment.VerificationReport),
        *(sediment.OriginalsRunReport, sediment.RestoreRunReport, sediment.VacuumRunReport),
    ):
        fields: dict[str, Any] = {name: None for name in kind.__dataclass_fields__ if name != "row_type"}
        report = kind(**(fields | {"partitions": (), "seconds": 0.0}))
        names = set(report.to_arrow().column_names)
        assert {"partition", "status", "reason_code", "reason"} <= names
        assert "keeps_tombstones" not in names and "fails_on_unknown" not in json.loads(report.to_json())


def test_numbers_beyond_the_precision_of_floats_stay_exact() -> None:
    plans = tuple(PartitionPlan("t-0", "/logs", "blocked", None, None, log_end_offset=end) for end in (2**62 + 1, None))
    report = sediment.PlanReport(run_id="r", command="plan", now_ms=0, seconds=0.0, partitions=plans)
    assert report.to_pandas()["log_end_offset"].tolist() == [2**62 + 1, pd.NA]


def test_the_json_is_that_of_the_command_line(log_dir: Path) -> None:
    def stable(document: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in document.items() if name not in ("run_id", "seconds")}

    ours = sediment.LogDirectories(log_dir, settings=EXPIRED, now_ms=1 << 42).expire(dry_run=True)
    sets = [f"--set={key}={value}" for key, value in (EXPIRED | {"plain:cleanup.policy": "delete"}).items()]
    theirs = command_line.sediment("expire", log_dir, "--dry-run", "--json", "--now-ms", 1 << 42, *sets)
    assert stable(json.loads(ours.to_json())) == stable(theirs.report)


def test_a_notebook_shows_the_page_of_the_run_in_a_frame_of_its_own() -> None:
    plan = PartitionPlan(HOSTILE, "/logs", "failed", "corrupt-batch", HOSTILE)
    report = sediment.PlanReport(run_id="r", command="plan", now_ms=0, seconds=0.0, partitions=(plan,))
    assert repr(report) == "<PlanReport of run r: 1 failed>"
    shown = report._repr_html_()
    assert "<script>alert" not in html.unescape(shown) and shown.count("<") == 2
    frame = re.fullmatch(r'<iframe [^<>]* sandbox="allow-scripts" [^<>]* srcdoc="([^"]*)"></iframe>', shown)
    assert frame is not None
    page = html.unescape(frame[1])
    assert page.lstrip().startswith("<!doctype html>") and "default-src 'none'" in page
    assert re.findall(r"(?:src|href)\s*=\s*[\"'](?!#)", page) == []


# ------------------------------------------------------------------------------------------------------------- failures
def test_failed_partitions_are_in_the_report_and_raise_only_on_request(
    log_dir: Path, spark: SparkSession, tmp_path: Path
) -> None:
    first = min((log_dir / "plain-1").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[200] ^= 1
    first.write_bytes(data)
    report = sediment.LogDirectories(
        log_dir, settings=STATED, spark=spark, metrics=tmp_path / "m.prom", report=tmp_path / "page.html"
    ).compact()
    assert report.failed and [each.status for each in report.partitions] == ["compacted", "quarantined"]
    with pytest.raises(sediment.RunFailedError, match=r"1 of 2 partitions failed in compact; plain-1: .*CRC") as error:
        report.raise_for_status()
    assert isinstance(error.value, sediment.SedimentError)
    ((partition, log, code, _),) = error.value.failures
    assert (partition, log, code) == ("plain-1", str(log_dir), "corrupt-batch")
    assert pickle.loads(pickle.dumps(error.value)).failures == error.value.failures
    assert "quarantined" in (tmp_path / "m.prom").read_text()
    assert "plain:delete.retention.ms=0" in (tmp_path / "page.html").read_text()


def test_an_unchanged_partition_is_compared_without_spark(log_dir: Path, spark: SparkSession, tmp_path: Path) -> None:
    for number in (0, 1):
        assert (
            not sediment.LogDirectories(log_dir, settings=STATED, spark=spark)
            .compact(keep_before=tmp_path / f"{number}")
            .failed
        )
    verified = sediment.LogDirectories(log_dir, settings=STATED, partitions=["plain-1"], spark=spark).verify(
        tmp_path / "1"
    )
    assert [(each.status, each.reason_code) for each in verified.partitions] == [("skipped", "not-changed")]
    assert not verified.failed


def test_a_wrong_pair_fails_with_its_first_difference() -> None:
    pair = PairReport("t-0", "/b/t-0", "/a/t-0", "wrong", differences=(Difference("lost", 7, "a record is missing"),))
    report = sediment.VerificationReport(run_id="r", command="verify", now_ms=0, seconds=0.0, partitions=(pair,))
    with pytest.raises(sediment.RunFailedError, match="t-0: lost at offset 7: a record is missing"):
        report.raise_for_status()


def test_unstated_settings_fail_on_request(log_dir: Path) -> None:
    assert not sediment.LogDirectories(log_dir).expire(dry_run=True).failed
    report = sediment.LogDirectories(log_dir, fail_on_unknown=True).expire(dry_run=True)
    assert report.failed and [each.reason_code for each in report.failures()] == ["policy-unknown"] * 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda path: sediment.LogDirectories(path).compact(max_bytes=-1),
            sediment.UsageError,
            "max_bytes: '-1' is not a size",
        ),
        (
            lambda path: sediment.LogDirectories(path).compact(strategy="fast"),
            sediment.UsageError,
            "strategy: 'fast' is not one of",
        ),
        (
            lambda path: sediment.LogDirectories(path).plan(force="perhaps"),
            sediment.UsageError,
            "force is 'perhaps'; give True or False",
        ),
        (
            lambda path: sediment.LogDirectories(path, settings={"retention": 1}).plan(),
            sediment.UsageError,
            "the nearest known key is",
        ),
        (lambda path: sediment.LogDirectories(path / "other").plan(), sediment.UsageError, "no such directory"),
        (lambda path: sediment.LogDirectories().plan(), sediment.UsageError, "no log directory is given"),
        (lambda path: sediment.LogDirectories(path, partitions="none-*").plan(), sediment.UsageError, "none-"),
        (
            lambda path: sediment.LogDirectories(path, spark=object()).plan(),
            sediment.UsageError,
            "not a session with a SparkContext",
        ),
        (
            lambda path: sediment.LogDirectories(path, report=path / "r").expire(),
            sediment.UsageError,
            "report must not be inside",
        ),
        (lambda path: sediment.history(path), sediment.UsageError, "not a ledger"),
        (lambda path: sediment.LogDirectories(path).dump(what="nothing"), sediment.UsageError, "nothing"),
    ],
)
def test_wrong_use_is_one_sentence_and_changes_nothing(
    call: Callable[[Path], object], error: type[Exception], text: str, log_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tree(log_dir)
    with pytest.raises(error, match=text) as raised:
        call(log_dir)
    assert "\n" not in str(raised.value)
    assert tree(log_dir) == before
    assert capfd.readouterr() == ("", "")


def test_a_directory_in_use_is_refused(log_dir: Path) -> None:
    with DirectoryLock(log_dir), pytest.raises(sediment.DirectoryInUseError):
        sediment.LogDirectories(log_dir).recover()


# ---------------------------------------------------------------------------------------------------- dump and history
def test_a_dump_is_read_when_it_is_used_as_rows_arrow_pandas_or_a_stream(log_dir: Path) -> None:
    records = sediment.LogDirectories(log_dir, partitions="plain-1").dump(
        what="records", columns=["offset", "key"], offsets="10:"
    )
    assert records.schema.names == ["offset", "key"]
    rows = list(records)
    assert rows == records.to_arrow().to_pylist()
    assert rows[0] == {"offset": 10, "key": rows[0]["key"]} and isinstance(rows[0]["key"], bytes)
    assert [row["offset"] for row in rows] == list(range(10, 2000))
    assert records.to_pandas()["offset"].dtype == pd.Int64Dtype()
    assert pl.DataFrame(records).height == len(rows)
    assert duckdb.from_arrow(records.to_reader()).count("*").fetchall() == [(len(rows),)]
    assert [row["offset"] for row in sediment.LogDirectories(log_dir / "plain-0").dump(what="records", limit=3)] == [
        0,
        1,
        2,
    ]
    assert len(list(sediment.LogDirectories(log_dir).dump())) == 12
    assert "the first 20 rows" in records._repr_html_()
    assert repr(records) == "<TableDump of records: offset, key>"


def test_values_in_a_notebook_are_escaped(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, value=HOSTILE.encode())])
    shown = sediment.LogDirectories(tmp_path / "t-0").dump(what="records")._repr_html_()
    assert "<script" not in shown


def test_a_dump_is_written_as_parquet(log_dir: Path, tmp_path: Path) -> None:
    dumped = sediment.LogDirectories(log_dir / "plain-0").dump(what="records", to=tmp_path / "parquet")
    assert pl.read_parquet(tmp_path / "parquet" / "*.parquet").height == dumped.to_arrow().num_rows == 2000


def test_dataframes_are_made_in_another_session_than_the_one_given(spark: SparkSession) -> None:
    for given in (spark, None):
        with create_session(None, "test", given) as session:
            session.conf.set("spark.sql.shuffle.partitions", "3")
            session.range(1).createOrReplaceTempView("made_here")
            assert session.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.shuffle.partitions") != "3"
    assert not spark.catalog.tableExists("made_here")
    assert spark.sparkContext._jsc is not None


def test_messages_go_to_the_log_as_plain_lines_also_in_a_notebook(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    messages = CommonOptions(log_dirs=(), now_ms=0, from_python=True).messages()
    messages.print("the report could not be written", style="red")
    assert not messages.is_terminal and not messages.is_jupyter
    assert [(record.name.partition(".")[0], record.getMessage()) for record in caplog.records] == [
        ("sediment", "the report could not be written")
    ]
    assert capfd.readouterr() == ("", "")


def test_the_ledger_has_the_runs(log_dir: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    first = sediment.LogDirectories(log_dir, settings=EXPIRED, ledger=ledger).expire(dry_run=True)
    second = sediment.LogDirectories(log_dir, ledger=str(ledger)).recover(dry_run=True)
    history = sediment.history(ledger)
    assert {run["run_id"] for run in history.runs} == {first.run_id, second.run_id}
    assert history.to_pandas()["command"].tolist() == [run["command"] for run in history.runs]
    one = sediment.history(ledger, run=first.run_id)
    assert [row["partition"] for row in one.to_arrow().to_pylist()] == ["plain-0", "plain-1"]
    assert json.loads(one.to_json())["runs"][0]["run_id"] == first.run_id
    assert len(sediment.history(ledger, partitions="plain-1").to_pandas()) == 2


@pytest.mark.delta
def test_a_snapshot_is_refreshed_in_the_session_of_the_caller(
    log_dir: Path, spark: SparkSession, tmp_path: Path
) -> None:
    from tests.jobs.snapshots import session_with_delta

    with session_with_delta() as session:
        before = dict(session.conf.getAll)
        made = sediment.LogDirectories(log_dir, partitions="plain-0", spark=session).snapshot(to=tmp_path / "table")
        assert (made.rows_inserted, [each.status for each in made.partitions]) == (150, ["refreshed"])
        assert dict(session.conf.getAll) == before


# ------------------------------------------------------------------------------------------------- threads and signals
def test_a_thread_may_call(log_dir: Path, spark: SparkSession) -> None:
    found: list[sediment.CompactionRunReport] = []
    thread = threading.Thread(
        target=lambda: found.append(
            sediment.LogDirectories(log_dir, settings=STATED, spark=spark).compact(dry_run=True)
        )
    )
    thread.start()
    thread.join()
    assert [each.status for each in found[0].partitions] == ["compacted", "compacted"]


def test_ctrl_c_lets_the_work_in_progress_end() -> None:
    stop = threading.Event()

    def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)
        return "ended"

    assert finish_on_interrupt(work, stop) == "ended"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_run_with_its_report_and_releases_the_locks(
    log_dir: Path, written: Path, spark: SparkSession
) -> None:
    for number in range(2, 24):
        shutil.copytree(written, log_dir / f"plain-{number}")

    def interrupt() -> None:
        wait_until(lambda: (log_dir / RUN_TOKEN_FILE).exists())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        sediment.LogDirectories(log_dir, settings=STATED, spark=spark).compact()
    assert isinstance(stopped.value, sediment.RunStopped)
    report = stopped.value.report
    assert isinstance(report, sediment.CompactionRunReport) and len(report.partitions) == 24
    assert {each.reason_code for each in report.partitions if each.status == "failed"} <= {"stopped"}
    with DirectoryLock(log_dir):
        assert not list(log_dir.glob("*/*.part"))
