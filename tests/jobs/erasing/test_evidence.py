"""Evidence of an erasure: what it says, what it does not hold, and ten and more ways to cheat that its check finds."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sediment import api
from sediment.jobs.erasing.envelope import load_signer, signed
from sediment.jobs.erasing.evidence import page_file, render_evidence
from tests.faults.inline_spark import inline_spark
from tests.jobs.erasing.erased_logs import STATED, make_logs, records
from tests.jobs.erasing.evidence_keys import SECRET, Keys, document, make_keys, write_metadata
from tests.jobs.log_dirs import Outcome, sediment, sediment_process, tree
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch

SUBJECT = "subject-4711"


@dataclass(frozen=True, slots=True)
class Erased:
    """An erased directory with its evidence and keys; `originals` is the directory before."""

    logs: Path
    originals: Path
    evidence: Path
    keys: Keys

    def check(self, *log_dirs: Path) -> Outcome:
        return sediment("erase", "--json", f"--check={self.evidence}", f"--public-key={self.keys.public}", *log_dirs)

    def rewrite(self, change: Callable[[Any], None], signer: Path | None = None) -> None:
        """Change the document and sign it, by default with the right key."""
        content = document(self.evidence)
        change(content)
        self.evidence.write_bytes(signed(content, load_signer(signer or self.keys.private)))


def make_erased(folder: Path, *arguments: str, replicas: Sequence[int] = (1,), beside: str | None = None) -> Erased:
    """Erase key a, or what `arguments` say, from a directory that also holds a directory `beside` the partitions."""
    folder.mkdir(parents=True)
    logs = make_logs(folder / "logs")
    write_metadata(logs, replicas)
    if beside is not None:
        (logs / beside).mkdir()
    shutil.copytree(logs, folder / "before")
    (folder / "keys.txt").write_text("a\n")
    (folder / "secret").write_bytes(SECRET + b"\n")
    keys = make_keys(folder, "key")
    outcome = sediment(
        "erase",
        logs,
        "--json",
        "--yes",
        *(arguments or (f"--keys-file={folder / 'keys.txt'}",)),
        f"--evidence={folder / 'evidence.json'}",
        f"--secret-file={folder / 'secret'}",
        f"--signing-key={keys.private}",
    )
    assert outcome.status == 0, outcome
    return Erased(logs, folder / "before", folder / "evidence.json", keys)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Erased:
    with inline_spark():
        return make_erased(tmp_path_factory.mktemp("erased") / "one")


@pytest.fixture
def erased(whole: Erased, tmp_path: Path) -> Erased:
    """A copy under the same name, whose evidence is about that name."""
    folder = whole.logs.parent
    shutil.copytree(folder, tmp_path / "copy")
    copy = tmp_path / "copy"
    return Erased(copy / "logs", copy / "before", copy / "evidence.json", Keys(copy / "key.pem", copy / "key.pub"))


# -------------------------------------------------------------------------------------------------------- what it says
def test_it_has_the_counts_the_files_before_and_after_and_a_second_scan_without_matches(whole):
    content = document(whole.evidence)
    people, visits = content["partitions"]
    assert [people[name] for name in ("matched", "removed", "records_after", "matches_after")] == [3, 3, 6, 0]
    assert [visits[name] for name in ("matched", "removed", "records_after", "matches_after")] == [2, 2, 2, 0]
    assert content["complete"] and content["incomplete"] == []
    for partition in content["partitions"]:
        for segment in partition["segments"]:
            for side, root in (("before", whole.originals), ("after", whole.logs)):
                for file in segment[side]:
                    data = (root / partition["partition"] / file["name"]).read_bytes()
                    assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size_bytes"], file["sha256"])


def test_the_subjects_are_hmacs_under_the_secret_of_the_caller(whole):
    assert document(whole.evidence)["subjects"] == {
        "by": "keys",
        "algorithm": "HMAC-SHA256",
        "hmacs": [hmac.new(SECRET, b"a", hashlib.sha256).hexdigest()],
    }


def test_the_page_beside_it_shows_the_conclusion(whole):
    page = page_file(whole.evidence).read_text()
    assert "Complete" in page and document(whole.evidence)["partitions"][0]["segments"][0]["after"][0]["sha256"] in page


def test_places_that_no_run_can_see_are_listed(whole):
    kinds = {place["kind"] for place in document(whole.evidence)["not_reached"]}
    assert {"tables", "earlier-originals", "backups", "filesystem-snapshots", "free-blocks", "consumers"} <= kinds


def test_it_is_incomplete_if_a_replica_was_not_covered_and_names_what_stands_beside_the_log(tmp_path):
    folder, stray = tmp_path / "two", f"people-0.{'0' * 32}-stray"
    arguments = ("--where=key = 'a'", f"--keep-originals={folder}/kept")
    erased = make_erased(folder, *arguments, replicas=(1, 2), beside=stray)
    content = document(erased.evidence)
    assert not content["complete"]
    assert [partition["replicas"] for partition in content["partitions"]] == [[1, 2], [1, 2]]
    found = {place["kind"]: place["path"] for place in content["not_reached"] if place["path"]}
    assert found == {"stray-partition": str(folder / "logs" / stray), "kept-originals": str(folder / "kept")}
    assert any("on brokers: 2" in reason for reason in content["incomplete"])
    assert content["subjects"]["by"] == "condition"
    assert [partition["matches_after"] for partition in content["partitions"]] == [0, 0]
    assert {key for key, _ in records(erased.logs / "visits-0").values()} == {b"x", b"b"}


# ------------------------------------------------------------------------------------------------------------ the check
def test_honest_evidence_is_verified(erased):
    outcome = erased.check(erased.logs)
    assert outcome.status == 0, outcome
    assert [each["status"] for each in outcome.report["partitions"]] == ["verified", "verified"]
    assert outcome.report["complete"] is True
    assert erased.check().status == 0  # the signature alone
    report = api.LogDirectories().check_evidence(erased.evidence, public_key=erased.keys.public)
    assert (report.complete, report.failures()) == (True, ())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("partitions", 0, "segments", 0, "after", 0, "name"), None),
        (("partitions", 0, "segments", 0, "after", 0, "name"), "a\0b.log"),
        (("partitions", 0, "segments", 0, "after", 0, "name"), "../../../etc/passwd"),
        (("partitions", 0, "segments", 1, "after", 0, "size_bytes"), 1.5),
        (("partitions", 0, "segments", 0, "base_offset"), -1),
        (("partitions", 0, "matches_after"), None),
        (("partitions", 0, "status"), []),
        (("partitions", 0, "replicas"), [{}]),
        (("partitions", 0, "segments"), []),
        (("not_reached", 0, "path"), True),
        (("log_dirs",), "x"),
        (("log_dirs", 0), {}),
        (("log_dirs", 0, "path"), "\ud800"),
        (("incomplete",), 7),
    ],
)
def test_a_document_of_other_types_proves_nothing_even_if_it_is_signed(erased, path, value):
    def change(content: Any) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    erased.rewrite(change)
    outcome = erased.check(erased.logs)
    assert outcome.status == 1, outcome
    assert outcome.report["problems"]


def test_records_that_a_broker_appended_since_are_a_note(erased):
    last = erased.logs / "people-0" / f"{3:020d}.log"
    last.write_bytes(last.read_bytes() + batch_bytes(6, "z"))
    outcome = erased.check(erased.logs)
    assert outcome.status == 0
    assert "has grown since" in outcome.partitions()["people-0"]["notes"][0]


def _edit(change: Callable[[Any], None]) -> Callable[[Erased, Path], None]:
    """A change of the payload without a new signature."""

    def cheat(erased: Erased, _folder: Path) -> None:
        envelope = json.loads(erased.evidence.read_text())
        content = json.loads(base64.b64decode(envelope["payload"]))
        change(content)
        envelope["payload"] = base64.b64encode(json.dumps(content).encode()).decode()
        erased.evidence.write_text(json.dumps(envelope))

    return cheat


def _set_matched(content: Any) -> None:
    content["partitions"][0]["matched"] += 1


def _change_envelope(**fields: Any) -> Callable[[Erased, Path], None]:
    def cheat(erased: Erased, _folder: Path) -> None:
        erased.evidence.write_text(json.dumps({**json.loads(erased.evidence.read_text()), **fields}))

    return cheat


def _sign_with_another_key(erased: Erased, folder: Path) -> None:
    erased.rewrite(lambda _content: None, make_keys(folder, "other").private)


def _put_back(erased: Erased, _folder: Path) -> None:
    name = f"{0:020d}.log"
    shutil.copy(erased.originals / "people-0" / name, erased.logs / "people-0" / name)


def _flip_a_byte(erased: Erased, _folder: Path) -> None:
    path = erased.logs / "visits-0" / f"{2:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _remove_the_last_segment(erased: Erased, _folder: Path) -> None:
    (erased.logs / "people-0" / f"{3:020d}.log").unlink()


def _link_an_old_segment(erased: Erased, _folder: Path) -> None:
    (erased.logs / "people-0" / f"{1:020d}.log").symlink_to("/no/such/mount/segment")


def _add_an_old_segment(erased: Erased, _folder: Path) -> None:
    write_segment(erased.logs / "people-0", 1, [batch_bytes(1, "a")])


def _keep_under_another_name(erased: Erased, _folder: Path) -> None:
    name = f"{0:020d}.log"
    shutil.copy(erased.originals / "people-0" / name, erased.logs / "people-0" / f"{name}.deleted")


def _keep_a_stray_partition(erased: Erased, _folder: Path) -> None:
    shutil.copytree(erased.originals / "people-0", erased.logs / f"people-0.{'0' * 32}-stray")


def _move_the_partition(erased: Erased, _folder: Path) -> None:
    (erased.logs / "people-0").rename(erased.logs / "people-1")


def _signed(change: Callable[[Any], None]) -> Callable[[Erased, Path], None]:
    """A change by the holder of the right key."""
    return lambda erased, _folder: erased.rewrite(change)


def _hide_a_replica(content: Any) -> None:
    for partition in content["partitions"]:
        partition["replicas"].append(2)


def _leave_out_a_segment(content: Any) -> None:
    partition = content["partitions"][0]
    segment = partition["segments"].pop(0)
    partition["removed"] -= segment["removed"]
    partition["records_after"] -= segment["records"]


def _admit_a_match(content: Any) -> None:
    content["partitions"][0]["matches_after"] = 1


def _claim_a_change_of_an_unchanged_segment(content: Any) -> None:
    segment = content["partitions"][0]["segments"][0]
    segment["before"] = segment["after"]


CHEATS = {
    "edit the figures": _edit(_set_matched),
    "take the signature off": _change_envelope(signatures=[]),
    "give the payload another type": _change_envelope(payloadType="application/json"),
    "sign with another key": _sign_with_another_key,
    "put the old segment back": _put_back,
    "change a byte": _flip_a_byte,
    "remove a segment": _remove_the_last_segment,
    "link to an old segment on a disk that is not mounted": _link_an_old_segment,
    "add an old segment": _add_an_old_segment,
    "keep the old file as .deleted": _keep_under_another_name,
    "keep the old partition as stray": _keep_a_stray_partition,
    "move the partition away": _move_the_partition,
    "hide that a replica was not covered": _signed(_hide_a_replica),
    "leave a segment out": _signed(_leave_out_a_segment),
    "call it complete with a match": _signed(_admit_a_match),
    "claim a change that left the file as it was": _signed(_claim_a_change_of_an_unchanged_segment),
}


@pytest.mark.parametrize("name", CHEATS)
def test_the_check_finds_a_way_to_cheat(erased, tmp_path, name):
    CHEATS[name](erased, tmp_path)
    outcome = erased.check(erased.logs)
    assert outcome.status == 1, outcome
    report = outcome.report
    assert report["problems"] or any(each["problems"] for each in report["partitions"])


def test_a_directory_that_the_evidence_is_not_about_is_refused(erased, tmp_path):
    other = make_logs(tmp_path / "other")
    assert erased.check(other).status == 2


# ------------------------------------------------------------------------------------------------------- what it hides
@dataclass(frozen=True, slots=True)
class Hidden:
    """A directory with a record of SUBJECT, options of a run with all outputs in `out`, and files with the subject."""

    logs: Path
    out: Path
    keys: Path
    options: tuple[str, ...]

    def holding_the_subject(self, outcome: Outcome) -> list[str]:
        """Names of the outputs and of the files in the directory that hold the subject."""
        written = tree(self.out) | {"stdout": outcome.stdout.encode(), "stderr": outcome.stderr.encode()}
        written |= {f"logs/{name}": data for name, data in tree(self.logs).items()}
        written["payload"] = base64.b64decode(json.loads(written["evidence.json"])["payload"])
        return [name for name, data in written.items() if SUBJECT.encode() in data]


@pytest.fixture
def hidden(tmp_path: Path) -> Hidden:
    logs, out, kept = tmp_path / "logs", tmp_path / "out", tmp_path / "kept"
    batch = encode_batch(
        [Record(offset, NOW_MS, key, b"v") for offset, key in enumerate((SUBJECT.encode(), b"x"))], base_offset=0
    )
    write_segment(logs / "visits-0", 0, [batch])
    (logs / ".kafka_cleanshutdown").touch()
    out.mkdir()
    (tmp_path / "keys").write_text(SUBJECT + "\n")
    (tmp_path / "secret").write_bytes(SECRET)
    options = (
        "--yes",
        "--json",
        f"--report={out}/page.html",
        f"--metrics={out}/metrics.prom",
        f"--evidence={out}/evidence.json",
        f"--keep-originals={kept}",
        f"--secret-file={tmp_path}/secret",
        f"--signing-key={make_keys(tmp_path, 'key').private}",
        *STATED[1:],
    )
    return Hidden(logs, out, tmp_path / "keys", options)


def test_no_output_holds_a_key(hidden, tmp_path):
    with inline_spark():
        outcome = sediment(
            "erase", hidden.logs, f"--keys-file={hidden.keys}", f"--ledger={hidden.out}/ledger", *hidden.options
        )
    assert (outcome.status, outcome.partitions()["visits-0"]["records_erased"]) == (0, 1), outcome
    assert hidden.holding_the_subject(outcome) == []
    assert SUBJECT.encode() not in b"".join(tree(hidden.logs).values())
    (catalogue,) = (tmp_path / "kept").glob("catalogue-*.json")
    assert SUBJECT not in catalogue.read_text()


@pytest.mark.parametrize(("second", "times"), [("/kafka-a", 1), ("/kafka-b", 2)])
def test_the_page_names_a_log_directory_of_all_partitions_once(second, times):
    partition = {"status": "erased", "action": "drop", "scanned": 1, "matched": 1, "removed": 1, "records_after": 0}
    partition |= {"matches_after": 0, "replicas": [1], "segments": []}
    page = render_evidence(
        {
            "run_id": "5a4d819de964",
            "sediment": "1",
            "finished_ms": NOW_MS,
            "complete": True,
            "partitions": [
                {**partition, "partition": "t-0", "log_dir": "/kafka-a"},
                {**partition, "partition": "t-1", "log_dir": "/kafka-a"},
                {**partition, "partition": "t-2", "log_dir": second},
            ],
            "not_reached": [],
            "subjects": {"algorithm": "HMAC-SHA256", "by": "keys", "hmacs": []},
        },
        "evidence.json",
    )
    assert page.count("/kafka-a") == times
    assert page.count("log directory") == times - 1


def test_no_output_holds_a_condition_also_not_the_event_log_of_spark(hidden, tmp_path):
    events = {"enabled": "true", "compress": "false", "dir": f"{hidden.out}"}
    lines = [f"spark.eventLog.{key} {value}\n" for key, value in events.items()]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("".join([*lines, "spark.log.level INFO\n"]))
    outcome = sediment_process(
        "erase",
        hidden.logs,
        f"--where=CAST(key AS STRING) = '{SUBJECT}'",
        "--log-format=json",
        "--master=local[1]",
        *hidden.options,
        environment={"SPARK_CONF_DIR": str(tmp_path / "conf")},
    )
    assert (outcome.status, outcome.partitions()["visits-0"]["records_erased"]) == (0, 1), outcome
    assert any("SparkListenerJobStart" in data.decode(errors="replace") for data in tree(hidden.out).values())
    assert hidden.holding_the_subject(outcome) == []
    assert "(hidden)" in (hidden.out / "page.html").read_text()
    (catalogue,) = (tmp_path / "kept").glob("catalogue-*.json")
    assert SUBJECT not in catalogue.read_text()
