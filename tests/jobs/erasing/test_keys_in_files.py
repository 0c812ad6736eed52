"""Keys to erase, and the secret of a suppression list, in the files that Spark writes to its local directories."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sediment.jobs.rewriting import run as rewriting_run
from sediment.jobs.spark.session import encrypting_files
from tests.faults.inline_spark import InlineContext, inline_spark
from tests.jobs.erasing.erased_logs import make_logs
from tests.jobs.log_dirs import sediment
from tests.waiting import LIMIT_SECONDS

ENCRYPTED = {"spark.io.encryption.enabled": "true"}


def key(number: int) -> bytes:
    return b"somebody-%012d@example.com" % number


def test_no_file_of_spark_contains_a_key_at_any_moment(tmp_path: Path) -> None:
    logs, local, keys = make_logs(tmp_path / "logs"), tmp_path / "local", tmp_path / "keys"
    local.mkdir()
    keys.write_bytes(b"a\n" + b"\n".join(map(key, range(50_000))) + b"\n")  # PySpark writes such a set to a file
    arguments = ("erase", logs, f"--keys-file={keys}", "--action=drop", "--yes", "--json", "--master=local[1]")
    process = subprocess.Popen(
        [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(local), "TMPDIR": str(local)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    found, seen = set(), set()
    while process.poll() is None:
        for path in (Path(folder, name) for folder, _, names in os.walk(local) for name in names):
            with suppress(OSError):
                seen.add(path)
                if path.is_file() and b"@example.com" in path.read_bytes():
                    found.add(path)
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, stderr
    assert b'"records_erased": 2' in stdout
    assert found == set()
    assert any("blockmgr" in str(path) or "pyspark" in str(path) for path in seen), "Spark writes its files here"
    assert b"spark-files" not in stdout


def test_a_session_without_encryption_is_listed_among_the_places_that_may_keep_keys(tmp_path: Path) -> None:
    logs, keys = make_logs(tmp_path / "logs"), tmp_path / "keys"
    keys.write_text("a\n")
    for settings, is_listed in (({}, True), (ENCRYPTED, False)):
        with inline_spark(), mock.patch.object(InlineContext, "getConf", lambda _, given=settings: given):
            erased = sediment("erase", logs, f"--keys-file={keys}", "--action=drop", "--yes", "--json")
        assert erased.status == 0, erased.stderr
        kinds = [place["kind"] for place in erased.report["not_reached"]]
        assert ("spark-files" in kinds) is is_listed


def test_a_setting_of_the_user_is_kept() -> None:
    assert encrypting_files({}) == ENCRYPTED
    assert encrypting_files({"spark.io.encryption.enabled": "false"}) == {}


@pytest.mark.parametrize("suppresses", [False, True])
def test_a_clone_that_sends_a_secret_to_its_tasks_has_files_encrypted(tmp_path: Path, suppresses: bool) -> None:
    logs, secret = make_logs(tmp_path / "logs"), tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "keys").write_text("a\n")
    listed = tmp_path / "list"
    given: list[dict[str, str]] = []

    @contextmanager
    def context(_master: str | None, _name: str, more: Any = None) -> Iterator[InlineContext]:
        given.append({} if more is None else dict(more({})))
        yield InlineContext()

    with inline_spark():
        options = (f"--keys-file={tmp_path / 'keys'}", "--action=drop", "--yes")
        made = sediment("erase", logs, *options, f"--suppress-out={listed}", f"--secret-file={secret}")
        assert made.status == 0, made.stderr
        more = (f"--suppress={listed}", f"--secret-file={secret}") if suppresses else ()
        with mock.patch.object(rewriting_run, "spark_context", context):
            cloned = sediment("clone", logs, "--to", tmp_path / "clone", *more)
    assert cloned.status == 0, cloned.stderr
    assert given == [ENCRYPTED if suppresses else {}]
