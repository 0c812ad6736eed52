"""`expire --keep-originals`: links are made before a deletion, and with the catalogue everything can be restored."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.expire import ExpireOptions
from sediment.jobs.expire import expire as run_expire
from sediment.jobs.expiring.report import ExpiryRunReport
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import Fail, Kill, Killed
from tests.jobs.expiring.expired_logs import EPOCHS, LOG_START, NAME, LinkingFs, bases, make_log
from tests.jobs.log_dirs import sediment, tree, write_checkpoint
from tests.jobs.originals.kept_originals import catalogues, originals_of, put_back
from tests.segments import NOW_MS

SOME = ("--set=retention.bytes=360", "--set=retention.ms=-1")
ALL = ("--set=retention.bytes=0", "--set=retention.ms=-1")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    make_log(path, epochs=EPOCHS)
    (path / NAME / f"{5:020d}.txnindex").touch()
    write_checkpoint(path / "cleaner-offset-checkpoint", {"other-0": 3})
    write_checkpoint(path / "recovery-point-offset-checkpoint", {NAME: 15, "other-0": 4})
    write_checkpoint(path / "replication-offset-checkpoint", {NAME: 15})
    return path


def expire(log_dir: Path, kept: Path, *more: object):
    return sediment(
        *("expire", log_dir, "--json", "--quiet", "--broker-defaults", f"--now-ms={NOW_MS}"),
        *(f"--keep-originals={kept}", *(more or SOME)),
    )


@pytest.mark.parametrize("sets", [SOME, ALL], ids=["some segments", "every segment"])
def test_what_went_is_linked_and_the_catalogue_puts_back_every_byte(log_dir, tmp_path, sets):
    before, kept = tree(log_dir), tmp_path / "deep" / "kept"
    inodes = {path.name: path.stat().st_ino for path in (log_dir / NAME).iterdir()}
    outcome = expire(log_dir, kept, *sets)
    assert outcome.status == 0, outcome.stderr
    gone = {name for name in inodes if not (log_dir / NAME / name).exists()}
    folder = originals_of(kept, catalogues(kept)[0], NAME)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == {name: inodes[name] for name in gone}
    assert {Path(name).suffix for name in gone} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    (catalogue,) = catalogues(kept)
    assert outcome.report["catalogue"] == str(kept / f"catalogue-{outcome.report['run_id']}.json")
    assert (catalogue["catalogue"], catalogue["state"], catalogue["command"]) == (2, "done", "expire")
    assert catalogue["run_id"] == outcome.report["run_id"]
    assert catalogue["started_ms"] <= catalogue["finished_ms"]
    (partition,) = catalogue["partitions"]
    assert {file["name"] for file in partition["files"]} == gone
    assert partition["status"] == "expired"
    assert partition["checkpoints"] == {
        "cleaner-offset-checkpoint": None,
        "log-start-offset-checkpoint": None,
        "recovery-point-offset-checkpoint": 15,
        "replication-offset-checkpoint": 15,
    }
    assert tree(log_dir) != before
    put_back(kept, catalogue)
    assert tree(log_dir) == before


def test_a_dry_run_makes_nothing_and_says_where_the_files_would_be_kept(log_dir, tmp_path):
    before = tree(tmp_path)
    outcome = sediment(
        *("expire", log_dir, f"--now-ms={NOW_MS}", f"--keep-originals={tmp_path}/kept"),
        *(*SOME, "--dry-run", "--broker-defaults"),
    )
    assert f"the files would be kept in {tmp_path}/kept" in outcome.stdout
    assert tree(tmp_path) == before
    assert not (tmp_path / "kept").exists()


def test_a_run_that_deletes_nothing_leaves_no_catalogue(log_dir, tmp_path):
    outcome = expire(log_dir, tmp_path / "kept", "--set=retention.ms=-1")
    assert (outcome.status, outcome.report["catalogue"], tree(tmp_path / "kept")) == (0, None, {})


def test_several_runs_share_a_directory_and_each_has_its_catalogue(log_dir, tmp_path):
    before, kept = tree(log_dir), tmp_path / "kept"
    expire(log_dir, kept, "--set=retention.bytes=720", "--set=retention.ms=-1")
    between = tree(log_dir)
    expire(log_dir, kept, *ALL)
    first, second = catalogues(kept)
    put_back(kept, second)
    assert tree(log_dir) == between
    put_back(kept, first)
    assert tree(log_dir) == before


def test_files_in_a_directory_of_an_earlier_version_stay(log_dir, tmp_path):
    kept = tmp_path / "kept" / NAME
    kept.mkdir(parents=True)
    (kept / f"{5:020d}.log").write_bytes(b"kept earlier")
    assert expire(log_dir, tmp_path / "kept").status == 0
    assert tree(kept) == {f"{5:020d}.log": b"kept earlier"}


@pytest.mark.parametrize("place", ["{log_dir}/kept", "{log_dir}", "{other}", "{other}/kept", "{before}"])
def test_originals_in_any_log_directory_or_beside_what_verify_compares_with_are_refused(log_dir, tmp_path, place):
    make_log(tmp_path / "other", "other-0")
    write_checkpoint(tmp_path / "other" / LOG_START, {})
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / ".sediment-before").write_text(str(log_dir))
    before = tree(tmp_path)
    given = place.format(log_dir=log_dir, other=tmp_path / "other", before=tmp_path / "before")
    outcome = expire(log_dir, Path(given))
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1), outcome.stderr
    assert "log director" in outcome.stderr
    assert tree(tmp_path) == before


def test_originals_on_another_filesystem_are_refused(log_dir):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == log_dir.stat().st_dev:
        pytest.skip("this system has no second filesystem to write to")
    target = elsewhere / f"sediment-{os.getpid()}"
    before = tree(log_dir)
    try:
        outcome = expire(log_dir, target)
    finally:
        if target.exists():
            target.rmdir()
    assert outcome.status == 2
    assert "another filesystem" in outcome.stderr
    assert tree(log_dir) == before


def test_the_catalogue_has_the_arguments_of_the_run(log_dir, tmp_path):
    expire(log_dir, tmp_path / "kept")
    (catalogue,) = catalogues(tmp_path / "kept")
    assert {str(log_dir), *SOME, "--json", f"--keep-originals={tmp_path}/kept"} <= set(catalogue["arguments"])


@pytest.mark.parametrize(
    ("value", "public"),
    [
        ("orders:retention.ms=5", "orders:retention.ms=5"),
        ("sasl.jaas.config=x password=hush", "sasl.jaas.config=(hidden)"),
        ("s3://key:hush@bucket/archive?token=hush", "s3://bucket/archive"),
        ("abfss://box@account.example/path", "abfss://box@account.example/path"),
        ("/plain/path?really", "/plain/path?really"),
        ("s3://key:hu/sh@bucket/archive", "s3://bucket/archive"),
        (str(Path("s3://key:hush@bucket/archive?token=hush")), "s3:/bucket/archive"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("s3://b/my dir?region=x&secret_key=hush", "s3://b/my dir"),
        ("see s3://key:hush@bucket/archive", "see s3://bucket/archive"),
        ("orders:/mnt/nas:/export@daily", "orders:/mnt/nas:/export@daily"),
    ],
)
def test_values_of_options_lose_what_could_be_a_secret(value, public):
    from sediment.segment_io.uris import without_secret

    assert without_secret(value) == public


# ----------------------------------------------------------------------------------------------------------- what fails


def kept_contents(kept: Path, name: str) -> list[bytes]:
    """Return the contents of a file, TOPIC-N/FILE, in the folders of all runs."""
    return [path.read_bytes() for path in kept.glob(f"*/{name}")]


def run(log_dir: Path, kept: Path, sets: Iterable[str], fs: Fs) -> ExpiryRunReport:
    settings = Settings.load(None, [given.removeprefix("--set=") for given in sets], broker_defaults=True)
    options = CommonOptions(log_dirs=(log_dir,), settings=settings, now_ms=NOW_MS, as_json=True, quiet=True)
    return run_expire(options, ExpireOptions(keep_originals=kept), fs=fs)


def test_a_run_killed_after_any_step_can_be_restored_or_repeated(tmp_path):
    for number in itertools.count(1):
        root = tmp_path / str(number)
        directory, kept = make_log(root / "logs", epochs=EPOCHS), root / "kept"
        log_dir = directory.parent
        before = tree(log_dir)
        try:
            run(log_dir, kept, ALL, LinkingFs(Kill(number)))
        except Killed:
            pass
        else:
            assert number > 20
            return
        left = tree(directory)
        logs = {name for name in before if name.endswith(".log")}
        for name in logs:
            file = Path(name).name
            there = left.get(file, left.get(f"{file}.deleted"))
            assert there == before[name] or before[name] in kept_contents(kept, name)
        if not all(left.get(Path(name).name) == before[name] for name in logs):
            (catalogue,) = catalogues(kept)
            assert catalogue["state"] == "planned" or number > 20
        assert not run(log_dir, kept, ALL, Fs()).failed
        for catalogue in reversed(catalogues(kept)):
            put_back(kept, catalogue)
        found = {name: content for name, content in tree(log_dir).items() if not name.endswith(".deleted")}
        assert found.pop(LOG_START, before.get(LOG_START)) == before.get(LOG_START)
        assert found == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_no_step_that_fails_lets_a_file_go_without_its_link(tmp_path, number):
    for place in itertools.count(1):
        root = tmp_path / str(place)
        directory, kept = make_log(root / "logs", epochs=EPOCHS), root / "kept"
        before = tree(directory)
        fs = LinkingFs(Fail(place, number))
        try:
            result = run(directory.parent, kept, ALL, fs)
        except (SedimentError, OSError):
            assert tree(directory) == before, "nothing is touched by a run that has no result"
            continue
        left = tree(directory)
        for name, content in before.items():
            if name.endswith((".log", "index", ".snapshot")) and left.get(name) != content:
                assert left.get(f"{name}.deleted") == content or content in kept_contents(kept, f"{NAME}/{name}")
        if fs.operations < place:
            assert not result.failed and place > 20
            return


class FullDisk(Fs):
    """No file can be written."""

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_without_room_for_the_catalogue_nothing_is_deleted(log_dir, tmp_path):
    before = tree(log_dir)
    report = run(log_dir, tmp_path / "kept", SOME, FullDisk()).partitions[0]
    assert (report.status, report.reason_code) == ("failed", "no-space")
    assert report.reason is not None and "catalogue" in report.reason
    assert tree(log_dir) == before
    assert bases(log_dir / NAME) == [0, 5, 10]


def test_a_catalogue_that_cannot_be_completed_stays_as_planned_and_is_named(log_dir, tmp_path, caplog):
    class FailsLater(Fs):
        catalogues = 0

        def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
            self.catalogues += path.name.startswith("catalogue-")
            if self.catalogues == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().replace_file(path, content, like=like)

    before, kept = tree(log_dir), tmp_path / "kept"
    result = run(log_dir, kept, SOME, FailsLater())
    assert not result.failed
    (catalogue,) = catalogues(kept)
    assert catalogue["state"] == "planned" and "stays in the state `planned`" in caplog.text
    put_back(kept, catalogue)
    assert tree(log_dir) == before
