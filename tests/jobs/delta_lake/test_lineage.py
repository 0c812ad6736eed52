"""OpenLineage events of an archive and of failing runs, as an HTTP server and OpenLineage's file transport get them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from sediment.jobs.delta_lake.lineage import API_KEY_VARIABLE, TableWrite, dataset_name, lineage_events
from sediment.jobs.process.cancellation import StoppedError
from sediment.jobs.reporting.statuses import STOPPED
from sediment.segment_io.errors import NoSpaceError, UsageError
from tests.jobs.expire.test_expire import DAY_MS, NAME, make_log
from tests.jobs.log_dirs import sediment, tree
from tests.ports import free_port
from tests.segments import NOW_MS

OLD_MS = NOW_MS - 30 * DAY_MS
TOPIC = (Path("/kafka"), "orders")


@dataclass(slots=True)
class LineageServer:
    """An HTTP server, and the events and API keys that clients sent to it."""

    url: str
    events: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[LineageServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found.keys.append(self.headers["Authorization"])
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        found = LineageServer(f"http://127.0.0.1:{listener.server_port}")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        listener.shutdown()
        thread.join()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Segments of two days that expire, and one that stays."""
    make_log(tmp_path / "logs", times_ms=(OLD_MS, OLD_MS + DAY_MS, NOW_MS))
    return tmp_path / "logs"


def file_transport(folder: Path) -> Path:
    """Write a configuration of OpenLineage's file transport; `events_in` reads what it wrote."""
    transport = {"type": "file", "log_file_path": str(folder / "events.json"), "append": True}
    file = folder / "openlineage.yml"
    file.write_text(yaml.safe_dump({"transport": transport}))
    return file


def events_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.json").read_text().splitlines()]


def archive(log_dir: Path, to: Path, lineage: object):
    return sediment(
        *("expire", log_dir, "--broker-defaults", "--json", f"--now-ms={NOW_MS}"),
        *("--archive", to, "--lineage", lineage),
    )


def test_an_archive_sends_its_topics_and_counts_to_a_server(server, log_dir, tmp_path, monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, "api-key")
    outcome = archive(log_dir, tmp_path / "archive", server.url)
    assert outcome.status == 0
    start, complete = server.events
    assert server.keys == ["Bearer api-key"] * 2
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["namespace"] == "sediment"
    assert complete["job"]["name"] == f"expire:{tmp_path / 'archive'}"
    for event in server.events:
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("file", f"{log_dir}/orders")]
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [("file", f"{tmp_path}/archive")]
    (read,), (written,) = complete["inputs"], complete["outputs"]
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 10
    (tag,) = complete["run"]["facets"]["tags"]["tags"]
    assert (tag["key"], tag["value"]) == ("sediment_run_id", outcome.report["run_id"])


def test_a_partition_that_fails_sends_its_reason_code_and_nothing_of_its_records(log_dir, tmp_path):
    segment = log_dir / NAME / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    outcome = archive(log_dir, tmp_path / "archive", file_transport(tmp_path))
    assert outcome.status == 1
    start, fail = events_in(tmp_path)
    assert (start["eventType"], fail["eventType"]) == ("START", "FAIL")
    (partition,) = outcome.report["partitions"]
    assert fail["run"]["facets"]["errorMessage"]["message"] == partition["reason_code"] == "corrupt-batch"
    assert partition["reason"] not in json.dumps(fail)
    assert "stackTrace" not in fail["run"]["facets"]["errorMessage"]


def test_a_server_that_is_down_is_a_warning_and_the_run_succeeds(log_dir, tmp_path, caplog):
    outcome = archive(log_dir, tmp_path / "archive", f"http://127.0.0.1:{free_port()}")
    assert outcome.status == 0
    assert outcome.report["partitions"][0]["messages_archived"] == 10
    warnings = [each.message for each in caplog.records if each.name.startswith("sediment")]
    assert [text.partition(";")[0] for text in warnings] == [
        "the OpenLineage event START was not sent",
        "the OpenLineage event COMPLETE was not sent",
    ]


def test_a_run_that_archives_nothing_sends_nothing(server, tmp_path):
    make_log(tmp_path / "logs", times_ms=(NOW_MS,))
    assert archive(tmp_path / "logs", tmp_path / "archive", server.url).status == 0
    assert server.events == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{", "the file is not YAML"),
        ("- transport", "names a file without a transport"),
        ("transport: {url: 'http://localhost'}", "names a file without a transport"),
        ("transport: {type: file}", "log_file_path"),
        ("transport: {type: http}", "url"),
        ("transport: {type: nowhere.Transport}", "lineage events cannot be sent"),
    ],
)
def test_a_destination_that_cannot_be_used_is_refused_before_anything_changes(log_dir, tmp_path, content, reason):
    file = tmp_path / "lineage.yml"
    if content is not None:
        file.write_text(content)
    before = tree(log_dir)
    outcome = archive(log_dir, tmp_path / "archive", file)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert reason in outcome.stderr
    assert tree(log_dir) == before


def test_a_missing_library_is_named_with_its_extra(log_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage.client.transport", None)
    before = tree(log_dir)
    outcome = archive(log_dir, tmp_path / "archive", "http://localhost")
    assert outcome.status == 2
    assert "pip install 'openlineage-python" in outcome.stderr
    assert tree(log_dir) == before


def test_neither_the_working_directory_nor_the_environment_is_a_destination(server, log_dir, tmp_path, monkeypatch):
    file_transport(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENLINEAGE_CONFIG", "openlineage.yml")
    assert archive(log_dir, tmp_path / "archive", server.url).status == 0
    assert [event["eventType"] for event in server.events] == ["START", "COMPLETE"]
    assert not (tmp_path / "events.json").exists()
    monkeypatch.setenv("OPENLINEAGE_URL", server.url)
    with lineage_events(None, "expire", [TOPIC], "/lake/archive") as written:
        written(TableWrite("run", {TOPIC: 1}))
    assert len(server.events) == 2


def test_the_library_is_loaded_only_for_a_destination():
    code = """
import sys
from sediment.jobs import expire, snapshot
from sediment.jobs.delta_lake.lineage import lineage_events
with lineage_events(None, "snapshot", [], "/lake/table"):
    pass
assert not [name for name in sys.modules if name.startswith(("openlineage", "requests", "yaml"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------------------------------------- events of any run
@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (NoSpaceError("the disk is full: secret-value"), "FAIL", "no-space"),
        (OSError(28, "secret-value"), "FAIL", "no-space"),
        (ValueError("secret-value"), "FAIL", "fault"),
        (KeyboardInterrupt(), "ABORT", StoppedError().reason_code),
    ],
)
def test_an_error_ends_the_run_with_its_reason_code(tmp_path, error, state, code):
    with (
        pytest.raises(type(error)),
        lineage_events(str(file_transport(tmp_path)), "snapshot", [TOPIC], "/lake/users"),
    ):
        raise error
    start, end = events_in(tmp_path)
    assert (start["eventType"], end["eventType"]) == ("START", state)
    assert end["run"]["facets"]["errorMessage"]["message"] == code
    assert "secret-value" not in json.dumps(end)


def test_a_result_with_stopped_partitions_is_an_aborted_run(tmp_path):
    with lineage_events(str(file_transport(tmp_path)), "expire", [TOPIC], "/lake/archive") as written:
        written(TableWrite("run", {TOPIC: 3}, failures=(STOPPED, STOPPED)))
    end = events_in(tmp_path)[-1]
    assert (end["eventType"], end["run"]["facets"]["errorMessage"]["message"]) == ("ABORT", STOPPED)


def test_an_event_names_a_topic_once_and_shows_no_credentials(tmp_path):
    topics = [TOPIC, TOPIC, (Path("/other"), "orders")]
    table = "s3://user:secret@lake/tables/users?token=secret"
    with lineage_events(str(file_transport(tmp_path)), "snapshot", topics, table) as written:
        written(TableWrite("run", {TOPIC: 3}, rows_written=2, version=7))
    event = events_in(tmp_path)[-1]
    assert [each["name"] for each in event["inputs"]] == ["/kafka/orders", "/other/orders"]
    assert [each["inputFacets"]["inputStatistics"]["rowCount"] for each in event["inputs"]] == [3, 0]
    (output,) = event["outputs"]
    assert (output["namespace"], output["name"]) == ("s3://lake", "tables/users")
    assert output["facets"]["version"]["datasetVersion"] == "7"
    assert "secret" not in (tmp_path / "events.json").read_text()


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/lake/users", ("file", "/lake/users")),
        ("file:///lake/a%20b", ("file", "/lake/a b")),
        ("s3://bucket/lake/users/", ("s3://bucket", "lake/users")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("s3a://bucket/lake", ("s3://bucket", "lake")),
        (
            "abfss://container@account.dfs.core.windows.net/lake",
            ("abfss://container@account.dfs.core.windows.net", "lake"),
        ),
        ("hdfs://name:8020/lake", ("hdfs://name:8020", "/lake")),
    ],
)
def test_datasets_have_the_names_that_openlineage_prescribes(place, expected):
    assert dataset_name(place) == expected


def test_a_url_with_a_wrong_port_is_refused_without_its_password():
    with pytest.raises(UsageError) as refused, lineage_events("http://user:geheim@host:port", "expire", [], "/lake"):
        pass
    assert "geheim" not in str(refused.value)
