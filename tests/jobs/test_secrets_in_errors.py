"""Errors of all commands: none shows the user, the password or the query of a URI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.jobs.process import state_files, stderr_log
from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import sediment

URI = "s3://AKIAKEY:SECRETPW@bucket/logs?secret_key=QSECRET"
SECRETS = ("AKIAKEY", "SECRETPW", "SECRET PW", "QSECRET")


@pytest.fixture(autouse=True)
def tasks_in_this_process() -> Iterator[None]:
    with inline_spark():
        yield


def texts(folder: Path, *arguments: object) -> dict[str, str]:
    outcome = sediment(*arguments)
    written = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    return {"stdout": outcome.stdout, "stderr": outcome.stderr, **written}


def assert_without_secrets(found: dict[str, str]) -> None:
    assert [(name, secret) for name, text in found.items() for secret in SECRETS if secret in text] == [], found


@pytest.mark.parametrize(
    "given",
    [
        *((name, URI) for name in ("compact", "dump", "expire", "originals", "plan", "recover", "serve", "vacuum")),
        ("adopt", f"--to={URI}", URI),
        ("clone", URI, f"--to={URI}"),
        ("compact", URI, f"--output={URI}"),
        ("compact", ".", f"--keep-originals={URI}"),
        ("compact", ".", f"--config={URI}"),
        ("compact", ".", f"--metadata={URI}"),
        ("compact", ".", f"--max-bytes={URI}"),
        ("doctor", URI),
        ("erase", URI, "--yes", "--where=true"),
        ("erase", URI, "--yes", f"--verdicts={URI}"),
        ("erase", URI, "--yes", f"--keys-file={URI}"),
        ("erase", ".", "--yes", "--keys-file=/dev/null", f"--output={URI}"),
        ("history", URI),
        ("plan", ".", f"--originals={URI}"),
        ("reencode", URI, "--codec=zstd"),
        ("reencode", URI, "--codec=zstd", f"--output={URI}"),
        ("restore", URI, f"--from={URI}"),
        ("snapshot", URI, f"--to={URI}"),
        ("verify", URI, URI),
    ],
    ids=lambda given: " ".join(given).replace(URI, "URI"),
)
def test_a_refusal_shows_no_secret_of_a_uri(given, tmp_path):
    metrics = () if given[0] in ("history", "originals", "vacuum") else (f"--metrics={tmp_path / 'metrics.prom'}",)
    assert_without_secrets(texts(tmp_path, *given, *metrics))


@pytest.mark.parametrize("command", ["compact", "plan"])
def test_a_refusal_in_json_shows_no_secret_of_a_uri(command, tmp_path):
    assert_without_secrets(texts(tmp_path, command, URI, "--json", "--log-format=json"))


def test_the_trace_of_a_bug_shows_no_secret_of_a_uri(tmp_path, monkeypatch):
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda _name: tmp_path)
    stderr_log.log_fault("a sentence", ValueError(f"cannot parse {URI}"))
    (trace,) = (tmp_path / "traces").iterdir()
    assert "cannot parse s3://bucket/logs" in trace.read_text()
    assert_without_secrets({"trace": trace.read_text()})


def test_a_bug_in_json_shows_no_secret_of_a_uri(capsys):
    with stderr_log.log_to_stderr(stderr_log.JSON, quiet=False):
        stderr_log.log_fault(f"a bug at {URI}", ValueError(f"cannot parse {URI}"), log_dirs=[URI], where={"dir": URI})
        stderr_log.stream_of_log().write(f"a line about {URI}\n")
        stderr_log.log_ready(f"ready at {URI}")
        java = stderr_log.as_line(f"Spark reads {URI}\n".encode()).decode()
    said = capsys.readouterr().err
    assert "cannot parse s3://bucket/logs" in said and "Spark reads s3://bucket/logs" in java
    assert_without_secrets({"stderr": said, "java": java})


def test_a_text_log_shows_no_secret_of_a_uri(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda _name: tmp_path)
    stderr_log.log_fault(f"a bug at {URI}", ValueError(f"cannot parse {URI}"))
    java = stderr_log.as_line(b"\xff Spark reads " + URI.encode())
    assert java == b"\xff Spark reads s3://bucket/logs"
    assert_without_secrets({"stderr": capfd.readouterr().err})


@pytest.mark.parametrize(
    "uri", ["s3://bucket/my dir?region=QSECRET", "s3://AKIAKEY:SECRET PW@b/x", "s3://b/a#t=QSECRET"]
)
def test_a_uri_with_characters_that_it_should_encode_shows_no_secret(uri, tmp_path):
    assert_without_secrets(texts(tmp_path, "compact", uri, "--log-format=json"))
    assert_without_secrets(texts(tmp_path, "compact", ".", f"--config={uri}"))
