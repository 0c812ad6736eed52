"""An output is complete if its manifest exists, and belongs to the run that claimed it last."""

import hashlib
import json
from pathlib import Path

import pytest

from sediment.engine.directory.output import (
    CLAIM_FILE,
    Publisher,
    PublishingFs,
    check_output_path,
    file_chunks,
)
from sediment.segment_io.errors import OwnershipError, SourceChangedError, UsageError
from sediment.segment_io.format.names import PartFile
from sediment.segment_io.manifest import MANIFEST_FILE
from sediment.segment_io.stores import Store

PART = f"{0:020d}.log.run-1.part"
LOG = f"{0:020d}.log"


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "output"))


@pytest.fixture
def publisher(store):
    publisher = Publisher(store, "run")
    assert publisher.begin() is None
    store.make_folder("t-0")
    return publisher


def finish(publisher, files):
    publisher.finish(files, sources=["/logs"], now_ms=7)


def test_the_manifest_comes_last_and_the_claim_goes(publisher, store):
    made = publisher.publish("t-0/x", [b"ab", b"c"], attempt="1", mtime_ns=5_000)
    assert made.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert set(store.files()) == {CLAIM_FILE, "t-0/x"}
    assert store.files()["t-0/x"].mtime_ns == 5_000
    finish(publisher, [made])
    assert set(store.files()) == {MANIFEST_FILE, "t-0/x"}
    assert json.loads(store.read(MANIFEST_FILE)) == {
        "schema": 1,
        "run_id": "run",
        "now_ms": 7,
        "sources": ["/logs"],
        "partitions": [],
        "files": [{"name": "t-0/x", "size_bytes": 3, "sha256": made.sha256}],
    }
    with pytest.raises(UsageError, match=r"already complete \(run run\)"):
        check_output_path(store, [])


def test_what_attempts_left_that_were_given_up_is_not_in_a_complete_output(publisher, store):
    made = publisher.publish("t-0/x", [b"x"], attempt="1")
    store.write("t-0/x.run-0.part", [b"half"])
    finish(publisher, [made])
    assert set(store.files()) == {MANIFEST_FILE, "t-0/x"}


@pytest.mark.parametrize("change", [lambda store: store.write("t-0/x", [b"xy"]), lambda store: store.delete("t-0/x")])
def test_an_output_in_which_somebody_else_writes_is_not_completed(publisher, store, change):
    made = publisher.publish("t-0/x", [b"x"], attempt="1")
    change(store)
    with pytest.raises(OwnershipError, match="its size is not the one that this run wrote"):
        finish(publisher, [made])
    assert store.read(MANIFEST_FILE) is None


def test_a_run_whose_output_another_run_took_writes_nothing_more(publisher, store):
    made = publisher.publish("t-0/x", [b"x"], attempt="1")
    check_output_path(store, [])
    assert Publisher(store, "other").begin() == "run"
    assert set(store.files()) == {CLAIM_FILE}
    with pytest.raises(OwnershipError, match="no longer belongs to this run"):
        publisher.publish("t-0/y", [b"y"], attempt="1")
    with pytest.raises(OwnershipError, match="no longer belongs to this run"):
        finish(publisher, [made])
    assert set(store.files()) == {CLAIM_FILE}


def test_a_crash_after_the_manifest_leaves_a_complete_output(publisher, store):
    claim = store.read(CLAIM_FILE)
    finish(publisher, [publisher.publish("t-0/x", [b"x"], attempt="1")])
    store.write(CLAIM_FILE, [claim])
    with pytest.raises(UsageError, match="already complete"):
        check_output_path(store, [])


def test_parts_go_straight_to_the_output_and_nothing_else_does(publisher, store, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    used = []
    fs = PublishingFs(publisher, "t-0", used.append, source=store)
    assert fs.write_new(work / PART, [b"abc"]) == 3
    fs.adopt_owner(work / PART, work / "missing")
    fs.set_mtime_ns(work / PART, 5_000)
    fs.sync_file(work / PART)
    fs.write_new(work / "x", [b"x"])
    assert [path.name for path in work.iterdir()] == ["x"]
    assert f"t-0/{PART}" in store.files()
    made = fs.take(PartFile(PART, LOG, 3))
    assert (made.name, made.size_bytes, made.sha256) == (f"t-0/{LOG}", 3, hashlib.sha256(b"abc").hexdigest())
    assert store.files()[f"t-0/{LOG}"].mtime_ns == 5_000
    assert f"t-0/{PART}" not in store.files()
    assert used == [3]


def test_parts_that_are_not_taken_are_removed(publisher, store, tmp_path):
    fs = PublishingFs(publisher, "t-0", lambda count: None, source=store)
    fs.write_new(tmp_path / PART, [b"abc"])
    fs.discard()
    assert set(store.files()) == {CLAIM_FILE}


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert b"".join(file_chunks(path, 2)) == b"ab"
    with pytest.raises(SourceChangedError, match="became shorter"):
        list(file_chunks(path, 4))


def test_a_claim_that_cannot_be_read_is_a_claim(store):
    store.make_folder("")
    store.write(CLAIM_FILE, [b"{"])
    store.write("t", [b"x"])
    check_output_path(store, [])
    assert Publisher(store, "run").begin() == "unknown"
    assert set(store.files()) == {CLAIM_FILE}


def test_neighbours_with_a_common_beginning_are_not_inside_one_another(tmp_path):
    check_output_path(Store(str(tmp_path / "logs-2")), [Store(str(tmp_path / "logs"))])
    with pytest.raises(UsageError, match="is inside the source"):
        check_output_path(Store(str(tmp_path / "logs" / "x")), [Store(f"file://{tmp_path}/logs")])
    assert not Path(tmp_path / "logs").exists()


def test_a_claim_that_a_crash_cut_off_is_no_obstacle_and_goes(store):
    store.make_folder("")
    store.write(f"{CLAIM_FILE}.dead.part", [b'{"schema": 1, "ru'])
    check_output_path(store, [])
    assert Publisher(store, "run").begin() is None
    assert set(store.files()) == {CLAIM_FILE}


def test_what_only_looks_like_a_claim_is_an_obstacle(store):
    store.make_folder("")
    store.write("x.part", [b""])
    with pytest.raises(UsageError, match="no unfinished run wrote it"):
        check_output_path(store, [])
