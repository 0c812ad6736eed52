"""`sediment erase` on real directories: what goes, what stays, and what is refused.

The tasks run in this process; test_erase_condition.py and test_evidence.py run them on Spark.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.erase import erase as run_erase
from sediment.jobs.erasing.erasure import EraseSegments
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.erasing.report import EraseRunReport, print_report
from sediment.jobs.reporting.screen import screen_text
from sediment.jobs.rewriting import run as rewriting_run
from sediment.jobs.rewriting.partition_task import SegmentTask, WrittenSegment
from sediment.jobs.rewriting.result import CleaningResult, failure
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import DeclinedError
from sediment.segment_io.fs import Fs
from tests.faults.inline_spark import inline_spark
from tests.jobs.erasing.erased_logs import STATED, erase, make_logs, records
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.jobs.originals.kept_originals import catalogues
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import list_segments


def end_offset(directory: Path) -> int:
    return max(batch.last_offset for segment in list_segments(directory) for _, batch in segment.batches()) + 1


@pytest.fixture(autouse=True)
def tasks_in_this_process() -> Iterator[None]:
    with inline_spark():
        yield


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return make_logs(tmp_path / "logs")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("a\nnot-there\n")
    return path


def verdict_table(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


# ------------------------------------------------------------------------------------------------------------ in place
def test_keys_become_tombstones_in_a_compacted_log_and_are_dropped_from_another_one(logs, keys):
    found = erase(logs, f"--keys-file={keys}", *STATED)
    people, visits = found["people-0"], found["visits-0"]
    assert records(logs / "people-0") == {
        0: (b"a", None), 1: (b"b", b"value"), 2: (b"a", None), 3: (b"c", b"value"), 4: (b"a", None), 5: (b"d", b"value")
    }  # fmt: skip
    assert records(logs / "visits-0") == {1: (b"x", b"value"), 2: (b"b", b"value")}
    assert end_offset(logs / "visits-0") == 4
    names = ("status", "action", "records_scanned", "records_matched", "records_erased", "segments_rewritten")
    assert [people[name] for name in names] == ["erased", "tombstone", 6, 3, 3, 2]
    assert [visits[name] for name in names] == ["erased", "drop", 4, 2, 2, 2]
    assert [name for name in tree(logs) if name.endswith((".part", ".swap", ".deleted", ".sediment-run"))] == []


def test_a_second_run_finds_the_tombstones_and_changes_nothing(logs, keys):
    erase(logs, f"--keys-file={keys}", *STATED)
    before = tree(logs)
    found = erase(logs, f"--keys-file={keys}", *STATED)
    assert tree(logs) == before
    assert (found["people-0"]["status"], found["people-0"]["records_matched"]) == ("unchanged", 3)
    assert (found["visits-0"]["status"], found["visits-0"]["records_matched"]) == ("unchanged", 0)


def test_values_are_replaced(logs, keys, tmp_path):
    (tmp_path / "new").write_bytes(b"masked")
    options = ("--action=replace", f"--replacement={tmp_path}/new")
    erase(logs, f"--keys-file={keys}", *STATED, *options)
    assert {value for key, value in records(logs / "people-0").values() if key == b"a"} == {b"masked"}
    assert {value for key, value in records(logs / "visits-0").values() if key != b"a"} == {b"value"}


def test_keys_are_also_read_as_hex_and_base64(logs, tmp_path):
    for key_format, text in (("hex", b"x".hex()), ("base64", base64.b64encode(b"d").decode())):
        (tmp_path / key_format).write_text(text + "\n")
        erase(logs, f"--keys-file={tmp_path / key_format}", f"--key-format={key_format}", "--action=drop", *STATED)
    assert {key for key, _ in records(logs / "people-0").values()} == {b"a", b"b", b"c"}
    assert {key for key, _ in records(logs / "visits-0").values()} == {b"a", b"b"}


def test_a_table_says_what_becomes_of_each_record(logs, tmp_path):
    rows = [
        {"topic": "people", "partition": 0, "offset": 1, "action": "replace", "key": None, "value": b"new"},
        {"topic": "people", "partition": 0, "offset": 3, "action": "replace", "key": b"K", "value": None},
        {"topic": "people", "partition": 0, "offset": 5, "action": None, "key": None, "value": None},
        {"topic": "visits", "partition": 0, "offset": 0, "action": None, "key": None, "value": None},
    ]
    write_checkpoint(logs / "cleaner-offset-checkpoint", {"people-0": 5, "visits-0": 4})
    erase(logs, f"--verdicts={verdict_table(tmp_path / 'v.parquet', rows)}", *STATED)
    people = records(logs / "people-0")
    assert (people[1], people[3], people[5]) == ((b"b", b"new"), (b"K", b"value"), (b"d", None))
    assert set(records(logs / "visits-0")) == {1, 2, 3}
    assert read_checkpoint(logs / "cleaner-offset-checkpoint") == {"people-0": 3, "visits-0": 4}


def test_a_table_in_csv(logs, tmp_path):
    (tmp_path / "v.csv").write_text("topic,partition,offset,action\nvisits,0,3,drop\npeople,0,0,\n")
    erase(logs, f"--verdicts={tmp_path}/v.csv", *STATED)
    assert set(records(logs / "visits-0")) == {0, 1, 2}
    assert records(logs / "people-0")[0] == (b"a", None)


def test_originals_are_kept_and_put_back_only_if_the_erasure_is_to_be_undone(logs, keys, tmp_path):
    before, kept = tree(logs), tmp_path / "kept"
    erase(logs, f"--keys-file={keys}", *STATED, f"--keep-originals={kept}")
    (catalogue,) = catalogues(kept)
    assert (catalogue["command"], catalogue["state"]) == ("erase", "done")
    erased = tree(logs)
    assert erased != before
    arguments = ("restore", logs, f"--from={kept}", f"--run={catalogue['run_id']}", "--json", "--yes")
    refused = sediment(*arguments)
    assert {each["reason_code"] for each in refused.report["partitions"]} == {"erasure"}
    assert tree(logs) == erased
    assert sediment(*arguments, "--undo-erasure").status == 0
    assert tree(logs) == before


def test_a_restore_undoes_an_erasure_only_if_that_is_asked_for_and_can_erase_again(logs, keys, tmp_path):
    before, kept = tree(logs), tmp_path / "kept"
    erase(logs, f"--keys-file={keys}", *STATED, f"--keep-originals={kept}")
    erased = tree(logs)
    restore = ("restore", logs, f"--from={kept}", "--yes", "--json")
    (run,) = catalogues(kept)
    refused = sediment(*restore, f"--run={run['run_id']}")
    assert {row["reason_code"] for row in refused.report["partitions"]} == {"erasure"}
    assert tree(logs) == erased
    restored = sediment(*restore, f"--run={run['run_id']}", "--undo-erasure")
    assert (restored.status, tree(logs)) == (0, before), restored.stdout + restored.stderr
    again = sediment(*restore, f"--run={restored.report['run_id']}")
    assert (again.status, tree(logs)) == (0, erased), again.stdout + again.stderr
    rows = sediment("originals", kept, "--json").report["partitions"]
    assert all(row["holds_erased"] for row in rows if row["run"] in (run["run_id"], again.report["run_id"]))


def test_the_keys_with_new_tombstones_are_written_for_their_owner_alone(logs, keys, tmp_path):
    erase(logs, f"--keys-file={keys}", *STATED, f"--tombstones-out={tmp_path}/out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert lines == [{"topic": "people", "partition": 0, "key": base64.b64encode(b"a").decode()}]


# ------------------------------------------------------------------------------------------------------------ refusals
def test_a_dry_run_counts_and_changes_nothing(logs, keys):
    before = tree(logs)
    outcome = sediment("erase", logs, "--json", "--dry-run", f"--keys-file={keys}", *STATED)
    assert outcome.status == 0
    assert [outcome.partitions()[name]["records_erased"] for name in ("people-0", "visits-0")] == [3, 2]
    assert outcome.report["estimated_seconds"] >= 0
    assert tree(logs) == before


@pytest.mark.parametrize("action", ["drop", "tombstone"])
def test_a_dry_run_reports_what_the_run_then_does(logs, keys, tmp_path, action):
    """Some of the records are tombstones already, have no key, or do not exist."""
    without_key = encode_batch([Record(7, NOW_MS, None, b"value")], base_offset=7, leader_epoch=0)
    write_segment(logs / "people-0", 6, [batch_bytes(6, "a", value=None), without_key])
    rows = [{"topic": "people", "partition": 0, "offset": offset} for offset in (0, 6, 7, 99)]
    for select in (f"--verdicts={verdict_table(tmp_path / 'verdicts', rows)}", f"--keys-file={keys}"):
        arguments = (select, f"--action={action}", "--all-versions", *STATED)
        outcome = sediment("erase", logs, "--json", "--dry-run", *arguments)
        assert outcome.partitions() == erase(logs, *arguments)
        again = sediment("erase", logs, "--json", "--dry-run", *arguments).partitions()
        assert {each["status"] for each in again.values()} == {"unchanged"}
        assert [each["records_erased"] for each in again.values()] == [0, 0]


def test_a_disk_that_cannot_hold_every_segment_twice_is_enough_for_the_segments_with_a_match(
    logs, tmp_path, monkeypatch
):
    (tmp_path / "keys").write_text("d\n")
    free_bytes = (logs / "people-0" / f"{3:020d}.log").stat().st_size
    monkeypatch.setattr(Fs, "free_bytes", lambda _self, _path: free_bytes)
    found = erase(logs, f"--keys-file={tmp_path}/keys", *STATED)
    assert (found["people-0"]["status"], found["people-0"]["segments_rewritten"]) == ("erased", 1)
    assert records(logs / "people-0")[5] == (b"d", None)


def test_without_a_terminal_yes_is_required(logs, keys):
    before = tree(logs)
    outcome = sediment("erase", logs, "--json", f"--keys-file={keys}", *STATED)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "--yes" in outcome.stderr
    assert tree(logs) == before


def test_a_policy_that_no_source_states_is_asked_for(logs, keys):
    outcome = sediment("erase", logs, "--json", "--yes", f"--keys-file={keys}", STATED[0])
    visits = outcome.partitions()["visits-0"]
    assert (outcome.status, visits["status"], visits["reason_code"]) == (1, "failed", "policy-unknown")
    assert set(records(logs / "visits-0")) == {0, 1, 2, 3}
    erase(logs, f"--keys-file={keys}", "--action=drop")
    assert set(records(logs / "visits-0")) == {1, 2}


def test_a_directory_after_an_unclean_stop_is_refused(tmp_path, keys):
    logs = make_logs(tmp_path / "unclean", clean=False)
    before = tree(logs)
    outcome = sediment("erase", logs, "--yes", f"--keys-file={keys}", *STATED)
    assert outcome.status == 1
    assert "sediment recover" in outcome.stderr
    assert tree(logs) == before


def test_an_internal_topic_is_changed_only_if_it_is_named(logs, keys):
    write_segment(logs / "__consumer_offsets-0", 0, [batch_bytes(0, "ab")])
    arguments = (f"--keys-file={keys}", *STATED, "--set=__consumer_offsets:cleanup.policy=compact")
    found = erase(logs, *arguments, "--partition=*-0")["__consumer_offsets-0"]
    assert (found["status"], found["reason_code"]) == ("skipped", "internal-topic")
    assert erase(logs, *arguments, "--partition=__consumer_offsets-*")["__consumer_offsets-0"]["status"] == "erased"


def test_records_above_the_high_watermark_stay_and_are_named(logs, keys):
    write_checkpoint(logs / "replication-offset-checkpoint", {"people-0": 5, "visits-0": 3})
    found = erase(logs, f"--keys-file={keys}", *STATED)
    assert found["visits-0"]["not_reached"] == [
        {"reason_code": "above-high-watermark", "records": 2 - 1, "offsets": [3]}
    ]
    assert set(records(logs / "visits-0")) == {1, 2, 3}
    assert found["people-0"]["not_reached"] == []


def test_a_corrupt_partition_is_left_alone_and_the_others_are_erased(logs, keys):
    path = logs / "people-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    before = records(logs / "visits-0")
    outcome = sediment("erase", logs, "--json", "--yes", f"--keys-file={keys}", *STATED)
    assert (outcome.status, outcome.partitions()["people-0"]["status"]) == (1, "quarantined")
    assert path.read_bytes() == content
    assert records(logs / "visits-0") != before


def common(logs: Path) -> CommonOptions:
    settings = Settings.load(None, [each.removeprefix("--set=") for each in STATED])
    return CommonOptions(log_dirs=(logs,), settings=settings, now_ms=NOW_MS, quiet=True)


def test_the_question_shows_the_counts_and_a_no_changes_nothing(logs, keys):
    before, shown = tree(logs), []
    with pytest.raises(DeclinedError):
        run_erase(common(logs), EraseOptions(keys_file=keys), confirm=lambda report: bool(shown.append(report)))
    (report,) = shown
    assert report.dry_run
    assert [(each.status, each.records_erased) for each in report.partitions] == [("erased", 3), ("erased", 2)]
    assert "not visible from here" not in screen_text(partial(print_report, report))  # a list that is not made yet
    assert tree(logs) == before
    asked: list[EraseRunReport] = []
    report = run_erase(common(logs), EraseOptions(keys_file=keys), confirm=lambda shown: not asked.append(shown))
    assert (len(asked), [each.records_erased for each in report.partitions]) == (1, [3, 2])


def test_a_partition_that_could_not_be_counted_is_not_erased(logs, keys, monkeypatch):
    before, erase_segment, shown = tree(logs), EraseSegments.__call__, []

    def fails_once(self: EraseSegments, task: SegmentTask, attempt: str) -> WrittenSegment | CleaningResult:
        if task.dry_run and task.listing.path.name == "visits-0":
            return failure("io-error", "the disk does not answer")
        return erase_segment(self, task, attempt)

    monkeypatch.setattr(EraseSegments, "__call__", fails_once)
    report = run_erase(common(logs), EraseOptions(keys_file=keys), confirm=lambda asked: not shown.append(asked))
    for each in (shown[0], report):
        assert [(row.status, row.records_erased) for row in each.partitions] == [("erased", 3), ("failed", 0)]
    assert {name: content for name, content in tree(logs).items() if "visits" in name} == {
        name: content for name, content in before.items() if "visits" in name
    }


def test_a_stop_while_counting_asks_nothing_and_erases_nothing(logs, keys, tmp_path, monkeypatch):
    before, erase_segment, stop = tree(logs), EraseSegments.__call__, threading.Event()

    def stops(self: EraseSegments, task: SegmentTask, attempt: str) -> WrittenSegment | CleaningResult:
        stop.set()
        return erase_segment(self, task, attempt)

    monkeypatch.setattr(EraseSegments, "__call__", stops)
    with pytest.raises(DeclinedError):
        run_erase(common(logs), EraseOptions(keys_file=keys), confirm=lambda _asked: pytest.fail("asked"), stop=stop)
    assert tree(logs) == before


def test_a_stop_leaves_the_other_partitions_unchanged_and_no_file_of_the_run(logs, keys):
    before, stop = tree(logs), threading.Event()

    def stop_then_go_on(_report: EraseRunReport) -> bool:
        stop.set()
        return True

    report = run_erase(common(logs), EraseOptions(keys_file=keys), confirm=stop_then_go_on, stop=stop)
    assert [(each.status, each.reason_code) for each in report.partitions] == [("failed", "stopped")] * 2
    assert [each.records_erased for each in report.partitions] == [0, 0]
    assert tree(logs) == before


def test_a_stop_between_two_segments_reports_the_records_that_are_erased(logs, keys, monkeypatch):
    stop = threading.Event()

    class StoppingFs(Fs):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if source.name.endswith(".log.swap"):
                stop.set()

    monkeypatch.setattr(rewriting_run, "Fs", StoppingFs)
    one = replace(common(logs), selection=Selection(("people-0",)))
    (people,) = run_erase(one, EraseOptions(keys_file=keys), stop=stop).partitions
    assert (people.status, people.reason_code) == ("failed", "stopped")
    assert (people.segments_rewritten, people.records_erased) == (1, 2)
    assert [record[1] for _, record in sorted(records(logs / "people-0").items())] == [
        None, b"value", None, b"value", b"value", b"value"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "exactly one of"),
        (("--keys-file=@keys", "--where=offset = 1"), "exactly one of"),
        (("--keys-file=@keys", "--action=replace"), "--replacement"),
        (("--keys-file=@keys", "--key-format=hex"), "line 1 is not in format hex"),
        (("--keys-file=@keys", "--tombstones-out=@logs/people-0/out"), "inside a log directory"),
        (("--verdicts=@none.parquet",), "cannot be read"),
    ],
)
def test_wrong_use_is_refused_before_anything_changes(logs, keys, tmp_path, arguments, text):
    before = tree(logs)
    given = [each.replace("@keys", str(keys)).replace("@logs", str(logs)).replace("@", f"{tmp_path}/")
             for each in arguments]  # fmt: skip
    outcome = sediment("erase", logs, "--yes", *STATED, *given)
    assert (outcome.status, outcome.stdout) == (2, ""), outcome
    assert text in outcome.stderr
    assert tree(logs) == before
