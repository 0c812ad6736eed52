"""`sediment verify`: accepts the results of Kafka 4.2.0 and of `compact` in every case, and rejects broken ones."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.corpus import cleaning_cases, load_case
from tests.jobs.broken_logs import BREAKAGES, NOW_MS, Edited
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, topic_sets, tree, write_checkpoint
from tests.logs import START_MS, LogShape, write_random_log
from tests.verification.divided import several_threads

FIRST_MS = NOW_MS  # the clock of the first round of most cases, and of those that are broken
LAST_MS = 1700002000000


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run over several partitions: (name of a partition, case, BEFORE, AFTER, first dirty offset, end offset)."""

    now_ms: int
    since_ms: int | None
    partitions: list

    def log_dirs(self, path):
        """BEFORE and AFTER with the checkpoints that the cleaner had and left, and the options of the run."""
        before = make_log_dir(
            path / "before",
            {name: source for name, _, source, *_ in self.partitions},
            dirty={name: dirty for name, *_, dirty, _ in self.partitions if dirty is not None},
        )
        after = make_log_dir(
            path / "after",
            {name: result for name, _, _, result, *_ in self.partitions},
            dirty={name: end for name, *_, end in self.partitions},
        )
        sets = {option for name, case, *_ in self.partitions for option in topic_sets(topic_of(name), case.configs)}
        since = [] if self.since_ms is None else ["--since-ms", self.since_ms]
        return before, after, ["--now-ms", self.now_ms, *since, *sorted(sets)]


def topic_of(name):
    return name.rpartition("-")[0]


def comparisons(cases):
    """Return every round of every case, and all rounds of a case at once; few runs, because each one costs seconds.

    Rounds that give no delete horizon go with the first ones whatever their clock.
    """
    rounds = [(case, number, given) for case in cases for number, given in enumerate(case.rounds)]
    first, last, between = [], [], []
    for case, number, given in rounds:
        row = (
            f"{topic_of(case.partition)}-{number}",
            case,
            given.before,
            given.after,
            given.dirty,
            given.kafka.end_offset,
        )
        if given.now_ms in (FIRST_MS, 1700000020000, 1700010000000):
            first.append(row)
        else:
            (last if given.now_ms == LAST_MS else between).append(row)
    at_once = [
        (case.partition, case, case.before, case.rounds[-1].after, None, case.rounds[-1].kafka.end_offset)
        for case in cases
        if len(case.rounds) > 1
    ]
    return [
        Comparison(FIRST_MS, None, first),
        Comparison(1700001060000, 1700001029999, between),
        Comparison(LAST_MS, None, last),
        Comparison(LAST_MS, FIRST_MS, at_once),
    ]


def break_results(before: Path, after: Path, partitions) -> dict[str, str]:
    """Add a partition for each breakage to both directories; its name -> the partition's."""
    names = {}
    for number, (what, breakage) in enumerate(BREAKAGES.items()):
        _, case, *_ = next(row for row in partitions if row[1].name == breakage.case)
        given = case.rounds[0]
        name = f"{topic_of(case.partition)}-{100 + number}"
        ends = ((before, given.before, given.dirty), (after, given.after, given.kafka.end_offset))
        for log_dir, source, offset in ends:
            shutil.copytree(source, log_dir / name)
            path = log_dir / "cleaner-offset-checkpoint"
            write_checkpoint(path, {**read_checkpoint(path), **({name: offset} if offset is not None else {})})
        breakage.do(Edited(before, after, name, int(case.configs.get("delete.retention.ms", 86_400_000))))
        names[what] = name
    return names


def keep_damage(log_dirs) -> None:
    """Give the same batch of both logs the same wrong checksum."""
    for log_dir in log_dirs:
        path = next((log_dir / "all_unique-0").glob("*.log"))
        content = bytearray(path.read_bytes())
        content[17] ^= 1
        path.write_bytes(content)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """([exit status], [partition -> report] of each comparison, what was broken -> report, the same in ranges).

    The last element are the reports of several threads, with the counts of their ranges.
    """
    scratch = tmp_path_factory.mktemp("verify")
    cases = [load_case(name, scratch / "cases") for name in cleaning_cases(magic2_only=False)]
    statuses, found, broken, again = [], [], {}, []
    for number, comparison in enumerate(comparisons(cases)):
        before, after, options = comparison.log_dirs(scratch / str(number))
        names = {}
        if number == 0:
            names = break_results(before, after, comparison.partitions)
            keep_damage((before, after))
        outcome = sediment("verify", before, after, "--json", *options)
        assert outcome.stdout, outcome.stderr
        reports = outcome.partitions()
        with several_threads() as counted:
            again.append((reports.copy(), sediment("verify", before, after, "--json", *options).partitions(), counted))
        broken |= {what: reports.pop(name) for what, name in names.items()}
        statuses.append(outcome.status)
        found.append(reports)
    return statuses, found, broken, again


def test_several_threads_return_the_same_reports(results):
    again = results[-1]
    for alone, in_ranges, _ in again:
        assert in_ranges == alone
    counted = [counts for *_, each in again for counts in each]
    clean = counted.count(Counter())
    assert clean > 10
    assert len(counted) - clean - counted.count(None) > 10


def test_every_round_of_kafkas_cleaner_and_all_rounds_at_once_are_correct_compactions(results):
    statuses, found, *_ = results
    wrong = {
        (number, name): report["differences"] or report["reason"]
        for number, reports in enumerate(found)
        for name, report in reports.items()
        if report["status"] != "correct"
    }
    assert wrong == {}
    assert statuses == [1, 0, 0, 0]
    assert [len(reports) for reports in found] == [32, 4, 2, 6]


def test_an_unreadable_batch_that_was_kept_is_not_a_difference(results):
    assert results[1][0]["all_unique-0"]["status"] == "correct"


@pytest.mark.parametrize("what", BREAKAGES)
def test_what_is_broken_is_found_by_its_check(results, what):
    _, _, broken, _ = results
    report, check = broken[what], BREAKAGES[what].check
    assert report["status"] == "wrong", report
    assert report["checks"][check] > 0, report["differences"]
    assert any(difference["check"] == check for difference in report["differences"])


def test_what_compact_leaves_of_random_logs_is_a_correct_compaction(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for seed in range(12):
        codecs = (0,) if seed % 2 else (0, 1, 2, 3, 4)
        write_random_log(before / f"t-{seed}", 900 + seed, LogShape(batches=120, codecs=codecs))
    (before / ".kafka_cleanshutdown").touch()
    shutil.copytree(before, after)
    shared = ["--set=t:cleanup.policy=compact", "--set=t:delete.retention.ms=20000", "--json"]
    for now_ms in (START_MS + 40_000, START_MS + 90_000):
        compacted = sediment("compact", after, "--force", "--from-start", "--now-ms", now_ms, *shared)
        assert compacted.status == 0, compacted.stdout
    untouched = tree(tmp_path)
    outcome = sediment("verify", before, after, "--since-ms", START_MS + 40_000, "--now-ms", START_MS + 90_000, *shared)
    wrong = {name: report["differences"] for name, report in outcome.partitions().items() if report["differences"]}
    assert wrong == {}
    assert outcome.status == 0
    assert all(report["records_after"] < report["records_before"] for report in outcome.partitions().values())
    assert tree(tmp_path) == untouched


def test_a_directory_of_links_that_two_runs_used_gives_the_time_of_the_first(tmp_path):
    logs, before = tmp_path / "logs", tmp_path / "before"
    for seed in range(4):
        write_random_log(logs / f"t-{seed}", 900 + seed, LogShape(batches=120))
    (logs / ".kafka_cleanshutdown").touch()
    shared = ["--set=t:cleanup.policy=compact", "--set=t:delete.retention.ms=20000"]
    for now_ms in (START_MS + 40_000, START_MS + 90_000):
        more = ("--force", "--from-start", "--keep-before", before, "--now-ms", now_ms)
        assert sediment("compact", logs, *more, *shared).status == 0
    last = ("--now-ms", START_MS + 90_000)
    outcome = sediment("verify", before, logs, *last, *shared)
    assert outcome.status == 0, outcome.stdout
    assert "several runs used BEFORE" in outcome.stderr
    assert sediment("verify", before / "t-0", logs / "t-0", *last, *shared).status == 0
    wrong = sediment("verify", before, logs, *last, "--since-ms", START_MS + 90_000, *shared)
    assert (wrong.status, "--since-ms must be the time of the first" in wrong.stdout) == (1, True), wrong.stdout


def test_tasks_of_spark_and_this_process_return_the_same_report(tmp_path):
    given = load_case("one-key", tmp_path).rounds[0]
    sides = ({"t-0": given.before, "t-1": given.before}, {"t-0": given.after, "t-1": given.after})
    before, after = (make_log_dir(tmp_path / name, side) for name, side in zip(("b", "a"), sides, strict=True))
    next((after / "t-1").glob("*.index")).write_bytes(b"\1" * 16)
    alone, by_tasks = (sediment("verify", before, after, "--json", *more) for more in ((), ("--master=local[2]",)))
    assert alone.partitions() == by_tasks.partitions()
    assert {name: report["status"] for name, report in alone.partitions().items()} == {"t-0": "correct", "t-1": "wrong"}


def test_two_directories_of_one_partition_are_compared_whatever_their_names(tmp_path):
    given = load_case("one-key", tmp_path).rounds[0]
    outcome = sediment("verify", given.before, given.after)
    assert outcome.status == 0
    assert "before" in outcome.stdout
    assert "1 of 1 partition is a correct compaction" in outcome.stdout
    report = sediment("verify", given.after, given.before, "--json", "--quiet").report
    assert (report["schema"], report["command"]) == (1, "verify")
    (partition,) = report["partitions"]
    assert partition["status"] == "wrong"
    assert partition["checks"]["superseded"] is None
    new = [difference for difference in partition["differences"] if difference["check"] == "records"]
    assert new[0] == {"check": "records", "offset": 0, "what": "BEFORE has no such record of this key"}
    assert len(new) == 10 < partition["checks"]["records"]


def test_a_cleaner_checkpoint_that_no_broker_can_read_is_an_error_unless_it_was_so_before(tmp_path):
    given = load_case("one-key", tmp_path).rounds[0]
    before, after = (make_log_dir(tmp_path / name, {"t-0": given.before}) for name in ("logs", "cleaned"))
    (after / "cleaner-offset-checkpoint").write_text("0\n1\nold backup 0 7\n")
    outcome = sediment("verify", before, after)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert str(after / "cleaner-offset-checkpoint") in outcome.stderr
    shutil.copy(after / "cleaner-offset-checkpoint", before)
    assert sediment("verify", before, after).status == 0


def test_a_partition_without_segments_is_compared_like_any_other(tmp_path):
    given = load_case("one-key", tmp_path).rounds[0]
    (tmp_path / "empty").mkdir()
    sources = {"t-0": given.before, "none-0": tmp_path / "empty"}
    before, after = (make_log_dir(tmp_path / name, sources) for name in ("logs", "cleaned"))
    outcome = sediment("verify", before, after, "--json")
    assert {name: one["status"] for name, one in outcome.partitions().items()} == {
        "t-0": "correct",
        "none-0": "correct",
    }
    for path in (after / "t-0").iterdir():
        path.unlink()
    outcome = sediment("verify", before, after, "--json")
    assert outcome.status == 1
    assert outcome.partitions()["t-0"]["status"] == "wrong"
    assert outcome.partitions()["t-0"]["checks"]["lost"] > 0


def test_wrong_use_is_reported_in_one_line(tmp_path):
    given = load_case("one-key", tmp_path).rounds[0]
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": given.before})
    for arguments, words in (
        ((given.before, log_dir), "is a log directory, and the other is the directory of one partition"),
        ((given.before, tmp_path / "none"), "no such directory"),
        ((log_dir, log_dir, "--partition", "u-*"), "'u-*' matches no partition"),
        ((log_dir, log_dir, "--partition", "t-*", "--partition", "u-*"), "'u-*' matches no partition"),
        ((log_dir / "t-0", log_dir / "t-0", "--partition", "u-*"), "'u-*' matches no partition"),
    ):
        outcome = sediment("verify", *arguments)
        assert outcome.status == 2
        assert words in outcome.stderr
        assert outcome.stderr.count("\n") == 1
    missing = sediment("verify", log_dir)
    assert missing.status == 2
    assert missing.stderr.splitlines()[-1] == "Error: give two directories, BEFORE and AFTER; 1 given"


@pytest.mark.parametrize("below", [".", "t-0"])
def test_an_empty_selection_is_allowed_for_schedulers(tmp_path, below):
    given = load_case("one-key", tmp_path).rounds[0]
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": given.before})
    place = log_dir / below
    outcome = sediment("verify", place, place, "--partition=u-*", "--allow-empty-selection", "--json")
    assert (outcome.status, outcome.partitions()) == (0, {})
