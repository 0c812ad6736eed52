"""`compact --output` from and to a server that speaks S3 over HTTP: buckets behave like directories."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sediment.segment_io.stores import Store
from tests.corpus import load_case
from tests.jobs.cleaning.outputs import CLEANER, COMPACT, MANIFEST, image, kill_when
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir, sediment, tree
from tests.ports import free_port
from tests.segments import NOW_MS, batch_bytes, write_segment

pytestmark = pytest.mark.s3

_ACCESS = "some-key:some-secret"
KEYS = "abcdefghijkl"


@pytest.fixture(scope="session")
def endpoint():
    """Host and port of the server, which lives in a process of its own."""
    server = Path(__file__).parents[3] / ".venv-s3" / "bin" / "moto_server"
    if not server.exists():
        pytest.skip("the server is not here; make test-s3 brings it")
    port = free_port()
    running = subprocess.Popen(
        [server, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert running.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


@pytest.fixture
def bucket(endpoint, request):
    """Makes a URI of a name in a bucket of this test's own."""
    from pyarrow.fs import S3FileSystem

    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    key, secret = _ACCESS.split(":")
    filesystem = S3FileSystem(
        access_key=key,
        secret_key=secret,
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    filesystem.create_dir(name)
    query = urlencode({"scheme": "http", "endpoint_override": endpoint, "region": "us-east-1"})
    return lambda path: f"s3://{_ACCESS}@{name}/{path}?{query}"


def upload(path: Path, where: str) -> str:
    store = Store(where)
    for name, content in tree(path).items():
        store.write(name, [content])
    return where


def download(where: str) -> dict[str, bytes]:
    store = Store(where)
    return {name: store.read(name) or b"" for name in store.files()}


def published(where: str) -> dict[str, bytes]:
    """Return the files of an output, after a check of its manifest."""
    found = download(where)
    found.pop(".lock", None)
    manifest = json.loads(found.pop(MANIFEST))
    assert {file["name"]: (file["size_bytes"], file["sha256"]) for file in manifest["files"]} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in found.items()
    }
    assert _ACCESS not in json.dumps(manifest)
    return found


@pytest.fixture
def log_dir(tmp_path):
    partitions = {}
    for topic in ("t", "other"):
        for base in range(0, 30, 10):
            batches = [batch_bytes(n, "ab"[n % 2], timestamp=NOW_MS) for n in range(base, base + 10)]
            write_segment(tmp_path / topic, base, batches)
        partitions[f"{topic}-0"] = tmp_path / topic
    return make_log_dir(tmp_path / "logs", partitions, dirty={"t-0": 0})


@pytest.mark.parametrize(("way", "strategy"), [("to", "whole"), ("from", "split"), ("between", "split")])
def test_a_bucket_holds_what_cleaning_in_place_leaves(way, strategy, bucket, tmp_path):
    cases = [load_case(name, tmp_path / "cases") for name in ("plain", "transactions", "everything")]
    local, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])
    in_place = shutil.copytree(local, tmp_path / "in-place")
    source = str(local) if way == "to" else upload(local, bucket("logs"))
    output = str(tmp_path / "output") if way == "from" else bucket("output")
    arguments = ("--force", "--json", "--now-ms", NOW_MS, *sets)
    ours = sediment("compact", source, "--output", output, "--strategy", strategy, *arguments)
    assert ours.status == 0, ours.stderr
    assert sediment("compact", in_place, *arguments).status == 0
    found, expected = published(output), tree(in_place)
    assert sorted(found.pop(CLEANER).splitlines()) == sorted(expected.pop(CLEANER).splitlines())
    assert found == expected
    for report in ours.report["partitions"]:
        assert (report["status"], report["strategy"]) == ("compacted", strategy)
        assert "some-secret" not in json.dumps(report)


@pytest.mark.parametrize("way", ["to", "between"])
def test_a_bucket_holds_what_reencoding_in_place_leaves_and_no_report_has_the_secret(way, bucket, log_dir, tmp_path):
    in_place = shutil.copytree(log_dir, tmp_path / "in-place")
    source = str(log_dir) if way == "to" else upload(log_dir, bucket("logs"))
    output = bucket("output")
    arguments = ("--codec=zstd", "--json", "--now-ms", NOW_MS)
    ours = sediment("reencode", source, "--output", output, *arguments)
    assert ours.status == 0, ours.stderr
    assert sediment("reencode", in_place, *arguments).status == 0
    assert published(output) == tree(in_place)
    assert "some-secret" not in ours.stdout + ours.stderr
    assert ours.report["output"] == output.replace(f"{_ACCESS}@", "").partition("?")[0]


def test_a_segment_goes_up_in_several_parts_and_comes_back_whole(bucket, tmp_path):
    values = [bytes([n]) * (3 << 20) for n in range(8)]
    log = tmp_path / "t"
    write_segment(log, 0, [batch_bytes(n, str(n), value=value, timestamp=NOW_MS) for n, value in enumerate(values)])
    write_segment(log, 8, [batch_bytes(8, "0", value=b"new", timestamp=NOW_MS)])
    write_segment(log, 9, [])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": log}, dirty={"t-0": 0})
    arguments = ("--force", "--now-ms", NOW_MS, COMPACT)
    assert sediment("compact", log_dir, "--output", bucket("up"), *arguments).status == 0
    assert len(published(bucket("up"))[f"t-0/{0:020d}.log"]) > 20 << 20
    assert sediment("compact", bucket("up"), "--output", tmp_path / "down", *arguments).status == 0
    assert sediment("compact", log_dir, *arguments).status == 0
    name = f"{0:020d}.log"
    assert (tmp_path / "down" / "t-0" / name).read_bytes() == (log_dir / "t-0" / name).read_bytes()


def test_segments_go_from_bucket_to_bucket_without_a_file_of_their_size(bucket, tmp_path):
    """No process of the run may write a file of more than a megabyte; each segment has twelve."""
    values = [bytes([n]) * (3 << 20) for n in range(12)]
    for base in (0, 4, 8):
        batches = [batch_bytes(n, KEYS[n], value=values[n], timestamp=NOW_MS) for n in range(base, base + 4)]
        write_segment(tmp_path / "t", base, batches)
    write_segment(tmp_path / "t", 12, [batch_bytes(12, KEYS[0], value=b"new", timestamp=NOW_MS)])
    write_segment(tmp_path / "t", 13, [])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "t"}, dirty={"t-0": 0})
    source, scratch = upload(log_dir, bucket("logs")), tmp_path / "scratch"
    scratch.mkdir()
    arguments = ("--force", "--now-ms", str(NOW_MS), COMPACT, "--set=t:segment.bytes=14000000")
    command = [sys.executable, "-m", "sediment.jobs.cli", "compact", source, "--output", bucket("output"), "--json"]
    ran = subprocess.run(
        ["bash", "-c", 'ulimit -f 1024; exec "$@"', "bash", *command, "--strategy=split", *arguments],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (report,) = json.loads(ran.stdout)["partitions"]
    assert (report["strategy"], report["messages_read"], report["messages_written"]) == ("split", 13, 12)
    assert sediment("compact", log_dir, *arguments).status == 0
    assert (
        published(bucket("output")).items()
        >= {f"t-0/{name}": content for name, content in tree(log_dir / "t-0").items()}.items()
    )


def test_killed_in_the_middle_it_leaves_no_manifest_and_the_next_run_starts_over(log_dir, bucket):
    before, output = image(log_dir), Store(bucket("output"))
    arguments = ("--force", "--now-ms", NOW_MS, COMPACT)
    slow = "--set=log.cleaner.io.max.bytes.per.second=500"
    kill_when(
        lambda: any(name.startswith("other-0/") for name in output.files()),
        *("compact", log_dir, "--output", output.where, slow, *arguments),
    )
    assert output.read(MANIFEST) is None
    assert image(log_dir) == before
    again = sediment("compact", log_dir, "--output", output.where, *arguments)
    assert again.status == 0, again.stderr
    assert "left incomplete by run" in again.stderr
    assert sediment("compact", log_dir, "--output", bucket("straight"), *arguments).status == 0
    assert published(output.where) == published(bucket("straight"))


def test_an_output_that_is_complete_or_lies_in_the_source_is_refused(log_dir, bucket):
    source = upload(log_dir, bucket("logs"))
    for place, sentence in (
        ("logs", "is the source"),
        ("logs/inside", "is inside the source"),
        ("", "is inside the source"),
    ):
        outcome = sediment("compact", source, "--output", bucket(place), "--force", COMPACT)
        assert outcome.status == 2
        assert sentence in outcome.stderr
    assert sediment("compact", source, "--output", bucket("logs-2"), "--force", COMPACT).status == 0
    outcome = sediment("compact", source, "--output", bucket("logs-2"), "--force", COMPACT)
    assert outcome.status == 2
    assert "already complete" in outcome.stderr
    assert "some-secret" not in outcome.stderr
    assert download(source) == tree(log_dir)


def test_a_missing_bucket_is_reported_in_one_line(log_dir, bucket):
    where = bucket("x").replace("@", "@no-such-")
    outcome = sediment("compact", log_dir, "--output", where, "--force", COMPACT)
    assert outcome.status == 1
    assert outcome.stderr.count("\n") == 1
    assert "some-secret" not in outcome.stderr


def test_a_clone_from_a_bucket_has_the_logs_of_the_directory(tmp_path, bucket):
    cases = [load_case(name, tmp_path / "cases") for name in ("plain", "transactions")]
    log_dir, _ = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])
    where = upload(log_dir, bucket("logs"))
    before = download(where)
    for source, to in ((where, "remote"), (log_dir, "local")):
        made = sediment("clone", source, "--to", tmp_path / to, "--json")
        assert made.status == 0, made.stderr
    assert download(where) == before
    found, expected = (
        {
            name: content
            for name, content in tree(tmp_path / to).items()
            if name.endswith((".log", "index", ".snapshot"))
        }
        for to in ("remote", "local")
    )
    assert found == expected and found
