"""`erase --output`: the same result as in place, in another directory; the source and its evidence say what stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.engine.directory.output import Publisher
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.erasing.options import EraseOptions
from sediment.segment_io.errors import UsageError
from tests.faults.inline_spark import inline_spark
from tests.jobs.cleaning.outputs import MANIFEST, image, published, uri
from tests.jobs.erasing.erased_logs import STATED, make_logs, records
from tests.jobs.erasing.evidence_keys import SECRET, Keys, document, make_keys, write_metadata
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.object_server import running_server


@pytest.fixture(autouse=True)
def tasks_in_this_process() -> Iterator[None]:
    with inline_spark():
        yield


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return make_logs(tmp_path / "logs")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("a\n")
    return path


def erase(logs: object, *arguments: object, status: int = 0) -> Outcome:
    outcome = sediment("erase", logs, "--json", "--yes", *STATED, *arguments)
    assert outcome.status == status, outcome
    return outcome


@pytest.mark.parametrize("source_as", [str, uri])
def test_an_output_is_what_erasing_in_place_leaves_and_the_source_stays_and_is_named(
    source_as, logs, keys, output, tmp_path
):
    in_place = shutil.copytree(logs, tmp_path / "in-place")
    before = image(logs)
    counted = erase(source_as(logs), f"--keys-file={keys}", f"--output={output}", "--dry-run")
    assert not output.exists()
    outcome = erase(source_as(logs), f"--keys-file={keys}", f"--output={output}")
    theirs = erase(in_place, f"--keys-file={keys}")
    assert image(logs) == before
    assert outcome.report["output"] == str(output)
    for name, row in theirs.partitions().items():
        assert outcome.partitions()[name] == {**row, "log_dir": source_as(logs)}
    for report in (counted.report, outcome.report):
        place = report["not_reached"][0]
        assert (place["kind"], place["path"]) == ("source", source_as(logs))
    assert published(output) == tree(in_place)
    assert b"a" not in {key for key, _ in records(output / "visits-0").values()}
    assert b"a" in {key for key, _ in records(logs / "visits-0").values()}


@pytest.mark.parametrize("source_as", [str, uri])
def test_what_a_broker_left_in_a_local_source_is_named(source_as, logs, keys, output):
    (logs / "people-0" / f"{0:020d}.log.deleted").write_bytes(b"x")
    (logs / f"visits-1.{'0' * 32}-stray").mkdir()
    places = erase(source_as(logs), f"--keys-file={keys}", f"--output={output}").report["not_reached"]
    assert {(each["kind"], each["path"]) for each in places} >= {
        ("leftover", str(logs / "people-0" / f"{0:020d}.log.deleted")),
        ("stray-partition", str(logs / f"visits-1.{'0' * 32}-stray")),
    }


@pytest.mark.parametrize("name", ["{}.log.bak", "{}.log.deleted", "{}.log.deleted.deleted", "notes.txt"])
def test_a_file_that_a_broker_does_not_know_stays_out_of_the_output(name, logs, keys, output):
    log = f"{0:020d}"
    shutil.copyfile(logs / "people-0" / f"{log}.log", logs / "people-0" / name.format(log))
    erase(logs, f"--keys-file={keys}", f"--output={output}")
    assert not (output / "people-0" / name.format(log)).exists()
    assert (output / "people-0" / "leader-epoch-checkpoint").exists() == (
        logs / "people-0" / "leader-epoch-checkpoint"
    ).exists()


def test_a_replacement_with_a_stacked_name_is_not_settled_in_the_output(logs, keys, output):
    (logs / "people-0" / f"{0:020d}.log.cleaned.swap").touch()
    found = erase(logs, f"--keys-file={keys}", f"--output={output}", status=1).partitions()
    assert (found["people-0"]["status"], found["people-0"]["reason_code"]) == ("failed", "interrupted")
    assert not (output / MANIFEST).exists()


def test_a_partition_that_fails_leaves_the_output_incomplete(logs, keys, output):
    path = logs / "people-0" / f"{3:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = image(logs)
    found = erase(logs, f"--keys-file={keys}", f"--output={output}", status=1).partitions()
    assert found["people-0"]["status"] == "quarantined"
    assert (found["visits-0"]["status"], found["visits-0"]["reason_code"]) == ("failed", "output-incomplete")
    assert found["visits-0"]["records_erased"] == 0
    assert image(logs) == before
    assert not (output / MANIFEST).exists()

    erase(logs, f"--keys-file={keys}", f"--output={output}", "--partition=visits-0")
    assert {name.partition("/")[0] for name in published(output) if "/" in name} == {"visits-0"}


def prove(logs: object, output: object, folder: Path, *arguments: object, status: int = 0) -> tuple[Outcome, Keys]:
    (folder / "secret").write_bytes(SECRET)
    signing = make_keys(folder, "key")
    proof = (
        f"--evidence={folder / 'evidence.json'}",
        f"--secret-file={folder / 'secret'}",
        f"--signing-key={signing.private}",
    )
    return erase(logs, f"--output={output}", *proof, *arguments, status=status), signing


def test_the_evidence_names_the_files_of_the_output_and_the_source_that_still_has_the_records(
    logs, keys, output, tmp_path
):
    write_metadata(logs)
    outcome, signing = prove(logs, output, tmp_path, f"--keys-file={keys}")
    evidence = tmp_path / "evidence.json"
    found = document(evidence)
    assert outcome.report["complete"] is found["complete"] is False
    assert f"{logs} was not reached" in found["incomplete"]
    assert [each["path"] for each in found["log_dirs"]] == [str(output)]
    for each in found["partitions"]:
        assert (each["log_dir"], each["status"], each["covered"]) == (str(output), "erased", [])
        assert each["matches_after"] == 0
        for segment in each["segments"]:
            for file in segment["after"]:
                path = output / each["partition"] / file["name"]
                assert path.stat().st_size == file["size_bytes"]

    (tmp_path / "link").symlink_to(output)

    def check(given: object = tmp_path / "link") -> Outcome:
        return sediment("erase", "--json", f"--check={evidence}", f"--public-key={signing.public}", given)

    for given in (tmp_path / "link", uri(output)):
        assert {row["status"] for row in check(given).partitions().values()} == {"verified"}
    remote = check("s3://key:secret@bucket/logs")
    assert (remote.status, "--check reads only directories of this machine" in remote.stderr) == (2, True)
    shutil.copyfile(logs / "meta.properties", output / "meta.properties")  # before a broker gets it
    assert check().status == 0
    shutil.copyfile(logs / "visits-0" / f"{0:020d}.log", output / "visits-0" / f"{0:020d}.log")
    assert check().partitions()["visits-0"]["status"] == "wrong"


def test_the_evidence_about_a_bucket_is_that_about_its_files_and_the_bucket_stays_as_it_is(
    logs, keys, output, tmp_path
):
    write_metadata(logs)
    with running_server() as server:
        server.objects |= {f"/bucket/logs/{name}": content for name, content in tree(logs).items()}
        before = dict(server.objects)
        remote, _ = prove(server.store().where, output, tmp_path, f"--keys-file={keys}")
        assert server.objects == before and not server.asked["PUT"]
    found = document(tmp_path / "evidence.json")
    local, files = tmp_path / "local", published(output)
    shutil.rmtree(output)
    local.mkdir()
    theirs, _ = prove(logs, output, local, f"--keys-file={keys}")
    expected = document(local / "evidence.json")
    assert {name: data for name, data in published(output).items() if "/" in name} == {
        name: data for name, data in files.items() if "/" in name
    }
    assert found["partitions"] == expected["partitions"]
    assert found["log_dirs"] == expected["log_dirs"]
    for name, row in theirs.partitions().items():
        assert remote.partitions()[name] == {**row, "log_dir": "s3://bucket/logs"}
    place = remote.report["not_reached"][0]
    assert (place["kind"], place["path"]) == ("source", "s3://bucket/logs")
    assert place["advice"].endswith("were not listed")
    assert remote.report["complete"] is found["complete"] is False
    assert "key:secret" not in json.dumps(found) + remote.stdout + remote.stderr


def test_a_record_of_a_bucket_that_the_second_scan_finds_makes_the_output_incomplete(
    logs, keys, output, tmp_path, monkeypatch
):
    finish = Publisher.finish

    def finish_with_an_old_log(self: Publisher, *arguments: object, **named: object) -> None:
        finish(self, *arguments, **named)
        shutil.copyfile(logs / "people-0" / f"{0:020d}.log", output / "people-0" / f"{0:020d}.log")

    monkeypatch.setattr(Publisher, "finish", finish_with_an_old_log)
    outcome, _ = prove(uri(logs), output, tmp_path, f"--keys-file={keys}", status=1)
    assert outcome.partitions()["people-0"]["reason_code"] == "still-matches"
    assert not (output / MANIFEST).exists()


def test_a_damaged_partition_of_a_bucket_is_named_by_its_uri(logs, keys, output):
    path = logs / "people-0" / f"{3:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    row = erase(uri(logs), f"--keys-file={keys}", f"--output={output}", status=1).partitions()["people-0"]
    assert (row["status"], f"{uri(logs)}/people-0/{path.name}" in row["reason"]) == ("quarantined", True)
    assert not (output / MANIFEST).exists()


def test_an_output_in_which_the_second_scan_finds_a_record_is_not_complete(logs, keys, output, tmp_path, monkeypatch):
    finish = Publisher.finish

    def finish_with_an_old_log(self: Publisher, *arguments: object, **named: object) -> None:
        finish(self, *arguments, **named)
        shutil.copyfile(logs / "people-0" / f"{0:020d}.log", output / "people-0" / f"{0:020d}.log")

    monkeypatch.setattr(Publisher, "finish", finish_with_an_old_log)
    outcome, _ = prove(logs, output, tmp_path, f"--keys-file={keys}", status=1)
    assert outcome.partitions()["people-0"]["status"] == "failed"
    assert not (output / MANIFEST).exists()
    monkeypatch.undo()
    prove(logs, output, tmp_path, f"--keys-file={keys}")
    assert (output / MANIFEST).exists()


def test_evidence_of_an_incomplete_output_says_that_nothing_was_done(logs, keys, output, tmp_path):
    (logs / "people-0" / f"{0:020d}.log.swap").touch()
    outcome, _ = prove(logs, output, tmp_path, f"--keys-file={keys}", status=1)
    assert outcome.report["complete"] is False
    found = document(tmp_path / "evidence.json")
    assert {each["status"] for each in found["partitions"]} == {"failed"}
    assert not any(each["segments"] for each in found["partitions"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--output=@/output", "--keep-originals=@/kept"), "--output excludes --keep-originals"),
        (("--output=@/output", "--tombstones-out=@/file"), "--output excludes --tombstones-out"),
        (("--output=@/logs",), "the output is the source"),
        (("--output=@/output", "@/logs/"), "the log directory is given twice"),
        (("--output=file://@/output", "--report=@/output/page.html"), "--report"),
        (("--output=@/output", "--suppress-out=@/output/list", "--secret-file=@/secret"), "--suppress-out"),
        (
            ("--output=s3://bucket/logs", "--evidence=@/file", "--secret-file=@/secret", "--signing-key=@/key"),
            "--evidence needs a directory as --output",
        ),
    ],
)
def test_outputs_and_options_that_make_no_sense_are_refused(logs, keys, arguments, message, tmp_path):
    before = image(tmp_path)
    given = [argument.replace("@", str(tmp_path)) for argument in arguments]
    outcome = erase(logs, f"--keys-file={keys}", *given, status=2)
    assert message in outcome.stderr
    assert image(tmp_path) == before


def test_an_output_file_in_a_log_directory_is_refused_for_a_caller_that_sets_only_log_dirs(logs, keys):
    common = CommonOptions(log_dirs=(logs,), now_ms=0, quiet=True)
    own = EraseOptions(keys_file=keys, tombstones_out=logs / "tombstones")
    with pytest.raises(UsageError, match="--tombstones-out"):
        own.validate(common)
