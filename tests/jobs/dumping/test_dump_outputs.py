"""`sediment dump` as a viewer of messages: its options together, CSV and Arrow on stdout, and a real terminal."""

from __future__ import annotations

import csv
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import sediment
from sediment.jobs.dump import command
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir
from tests.segments import COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import Record, encode_batch


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    transaction = batch_bytes(0, "abc", producer_id=1, transactional=True)
    write_segment(tmp_path / "t-0", 0, [transaction, marker_bytes(3, COMMIT, producer_id=1)])
    write_segment(tmp_path / "t-1", 0, [encode_batch([Record(0, NOW_MS, b"\x1b]0;x\x07", b"1\n2")], base_offset=0)])
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_format_prints_messages_and_implies_records(log_dir: Path) -> None:
    result = run(log_dir, "-f", r"%t-%p:%o:%k:%s\n")
    assert result.stdout_bytes == (
        b"t-0:0:a:value\nt-0:1:b:value\nt-0:2:c:value\nt-1:0:\x1b]0;x\x07:1\n2\n"  # not the marker at offset 3
    )
    assert run(log_dir, "--format", r"%o\n", "--last", 2, "--partition", "t-0").stdout == "1\n2\n"
    assert run(log_dir, "--format", r"%o\n", "--limit", 1).stdout == "0\n"
    assert run(log_dir, "--format", r"%o\n", "--key", "b", "--offsets", ":2").stdout == "1\n"


def test_the_last_records_of_what_kafka_wrote(tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"headers-0": load_case("headers", tmp_path).before})
    rows = list(sediment.LogDirectories(log_dir).dump(what="records"))
    result = run(log_dir, "-f", r"%o %K %h\n", "--last", 3)
    expected = [
        f"{row['offset']} {len(row['key'])} "
        + ",".join(f"{each['key']}={(each['value'] or b'NULL').decode()}" for each in row["headers"] or ())
        for row in rows[-3:]
    ]
    assert result.stdout.splitlines() == expected
    name = next(row["headers"][0]["key"] for row in rows if row["headers"])
    with_header = [row["offset"] for row in rows if any(each["key"] == name for each in row["headers"] or ())]
    assert [row["offset"] for row in sediment.LogDirectories(log_dir).dump(header=name)] == with_header
    assert [
        row["offset"] for row in sediment.LogDirectories(log_dir).dump(header=name, last=2, limit=1)
    ] == with_header[-2:-1]
    key = rows[0]["key"].decode()
    of_key = [row for row in rows if row["key"] == rows[0]["key"]]
    assert list(sediment.LogDirectories(log_dir).dump(key=key)) == of_key
    to = tmp_path / "parquet"
    assert list(sediment.LogDirectories(log_dir).dump(key=key, to=to)) == of_key
    assert pl.read_parquet(to)["offset"].to_list() == [row["offset"] for row in of_key]


def test_csv_and_arrow_on_stdout_are_read_by_others(log_dir: Path) -> None:
    printed = run(log_dir, "--what", "records", "--csv", "--columns", "partition,offset,key,value").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3", "0"]
    assert (rows[0]["key"], rows[3]["key"]) == ("a", '{"type":"COMMIT","coordinatorEpoch":0}')
    assert (rows[4]["key"], rows[4]["value"]) == ('{"hex":"1b5d303b7807"}', "1\n2")

    stream = run(log_dir, "--what", "records", "--arrow").stdout_bytes
    table = pa.ipc.open_stream(stream).read_all()
    assert table == sediment.LogDirectories(log_dir).dump(what="records").to_arrow()
    assert pl.read_ipc_stream(stream)["key"].to_list()[4] == b"\x1b]0;x\x07"
    limited = pa.ipc.open_stream(run(log_dir, "--what", "records", "--arrow", "--limit", 4).stdout_bytes).read_all()
    assert limited.column("offset").to_pylist() == [0, 1, 2, 3]
    segments = pa.ipc.open_stream(run(log_dir, "--arrow").stdout_bytes).read_all()
    assert segments.column("partition").to_pylist() == [0, 1]


def test_an_arrow_stream_that_an_error_cut_has_no_end(log_dir: Path) -> None:
    log = log_dir / "t-1" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:70] + b"\xff" + log.read_bytes()[71:])
    result = run(log_dir, "--what", "records", "--arrow")
    assert result.exit_code == 1
    whole = run(log_dir, "--what", "records", "--arrow", "--partition", "t-0").stdout_bytes
    assert result.stdout_bytes == whole[:-8]  # without the mark of the end


def test_a_terminal_gets_no_control_characters_and_no_arrow(log_dir: Path) -> None:
    def on_terminal(*arguments: str) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "sediment.jobs.cli", "dump", str(log_dir), *arguments], stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the terminal has no other side any more
            pass
        finally:
            os.close(ours)
        return process.wait(), shown.replace(b"\r\n", b"\n")

    status, shown = on_terminal("-f", r"\x1b[1m%k %s\n", "--partition", "t-1")
    assert (status, shown) == (0, b"\x1b[1m" + rb"\x1b]0;x\x07 1\n2" + b"\n")
    status, shown = on_terminal("--arrow")
    assert (status, shown.count(b"\n")) == (2, 1)
    assert b"--arrow is binary, and stdout is a terminal; redirect stdout" in shown


def test_a_closed_stdout_is_one_sentence(log_dir: Path) -> None:
    for arguments in ("", "--json", "--arrow"):
        script = f'exec "$0" -m sediment.jobs.cli dump "$1" {arguments} >&-'
        done = subprocess.run(["sh", "-c", script, sys.executable, str(log_dir)], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (1, b"sediment: stdout cannot be written: Bad file descriptor\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json", "--csv"], "--json and --csv exclude each other"),
        (["-f", "%o", "--arrow"], "--arrow and --format exclude each other"),
        (["-f", "%o", "--to", "new"], "--format and --to exclude each other"),
        (["--follow", "--to", "new"], "--follow and --to exclude each other"),
        (["--follow", "--offsets", "0:9"], "--follow reads without an end, but --offsets or --timestamps-ms sets one"),
        (["--follow", "--columns", "key"], "--columns does not apply to --follow"),
        (["-f", "%o", "--keys"], "--keys does not apply to --format"),
        (["--last", "1", "--what", "batches"], "--last is for records only"),
        (["--key", "a", "--what", "segments"], "--key is for records only"),
        (["-f", "%y"], "--format has the token %y"),
        (["--key", "a", "--to", "new", "--master", "local"], "--master does not apply to --last, --key and --header"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_use(arguments: list[str], sentence: str, log_dir: Path) -> None:
    result = run(log_dir, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert sentence in result.stderr
