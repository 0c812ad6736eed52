"""Swaps that were prepared while an engine was running: which ones it commits or refuses, and its replies."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from sediment.compaction.clean_log import clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import swap_from_json, swap_to_json
from sediment.engine.directory.spool import CommitReply, spool_swap
from sediment.engine.live.spool_committer import SpoolCommitter
from sediment.segment_io.errors import DirectoryInUseError, UsageError
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_checkpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.engine.managed import (
    T0,
    FailingFs,
    advance,
    append,
    clock_of,
    dirty_log,
    latest_of,
    manager_of,
    records_of,
    running,
    topic_config,
)
from tests.jobs.log_dirs import read_checkpoint
from tests.spool_replies import read_replies
from tests.waiting import LIMIT_SECONDS

EAGER = topic_config("compact", min_cleanable_dirty_ratio=0.0)
FS = Fs()
RUN = "0123456789ab"


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "hand-off"


@pytest.fixture
def engine(logs, folder):
    """Run an engine without its own cleaner and with one dirty log, whose rolled segments are durable."""
    with running(logs, topic=EAGER, hand_off=folder, log_cleaner_enable=False) as manager:
        dirty_log(manager).flush()
        manager.checkpoint_recovery_points()
        manager.checkpoint_high_watermarks()
        yield manager


def prepare(logs, run_id=RUN, now_ms=1_700_000_000_000, partition=T0):
    """Clean a log as a job does that knows nothing but the files: parts beside the sources, no lock, no rename."""
    listing = list_log(partition, logs / str(partition), FS)
    checkpoints = read_checkpoints(logs, FS).of(partition)
    config = EAGER.compaction
    view = open_view(listing, checkpoints, FS, now_ms=now_ms, producer_id_expiration_ms=86_400_000)
    cleanable = cleanable_range(view, config, now_ms=now_ms)
    assert cleanable.blocked_by is None
    plan = plan_cleaning(view, cleanable, config, now_ms=now_ms)
    return clean_log(plan, FS, Attempt(run_id, "0.0.0"))


def parts_in(logs):
    return [path.name for path in (logs / "t-0").iterdir() if path.name.endswith(".part")]


def take(engine, folder):
    return SpoolCommitter(folder, engine, engine.fs).commit_all()


def test_what_a_job_cleaned_is_committed_while_the_log_is_appended_to(engine, logs, folder):
    log = engine.get_log(T0)
    swap = prepare(logs)
    append(log, ("a", "x"), ("c", "y"), ("d", "z"))
    before = latest_of(log)
    spool_swap(swap, folder, RUN, FS)
    advance(engine, 15_000)
    assert read_replies(folder) == [CommitReply("t-0", RUN, None)]
    assert latest_of(log) == before == {b"a": b"x", b"b": b"5", b"c": b"y", b"d": b"z"}
    assert len(records_of(log)) < log.log_end_offset
    assert read_checkpoint(logs / "cleaner-offset-checkpoint") == {"t-0": swap.next_dirty_offset}
    assert parts_in(logs) == []
    assert engine.cleaner.manager.states.of(T0) is None


def test_the_swap_of_the_longest_partition_is_committed_or_refused_by_its_whole_name(logs, folder):
    longest, unknown = TopicPartition("t" * 249, 9), TopicPartition("t" * 249, 8)
    with running(logs, topic=EAGER, hand_off=folder, log_cleaner_enable=False) as engine:
        log = engine.create_log(longest)
        for number in range(4):
            append(log, ("a", str(number)), ("b", str(number)))
            log.roll()
        log.flush()
        engine.checkpoint_recovery_points()
        engine.checkpoint_high_watermarks()
        swap = prepare(logs, partition=longest)
        spool_swap(swap, folder, RUN, FS)
        spool_swap(replace(swap, partition=unknown), folder, RUN, FS)
        (folder / f"{'t' * 100}~0123456789abcdef.{RUN}.json").write_text("{")
        answers = {answer.partition: answer.refusal for answer in take(engine, folder)}
        assert answers.pop(str(longest)) is None
        assert answers.pop(str(unknown)) == "the engine has no log of this partition"
        assert all("swap" in str(refusal) for refusal in answers.values()) and len(answers) == 1
        assert latest_of(log) == {b"a": b"3", b"b": b"3"} and len(records_of(log)) < log.log_end_offset


def test_what_was_committed_is_there_after_a_restart(logs, folder):
    with running(logs, topic=EAGER, hand_off=folder, log_cleaner_enable=False) as engine:
        log = dirty_log(engine)
        log.flush()
        engine.checkpoint_recovery_points()
        engine.checkpoint_high_watermarks()
        spool_swap(prepare(logs), folder, RUN, FS)
        assert take(engine, folder) == [CommitReply("t-0", RUN, None)]
        expected, count = latest_of(log), len(records_of(log))
    with running(logs, topic=EAGER) as engine:
        log = engine.get_log(T0)
        assert (latest_of(log), len(records_of(log))) == (expected, count)


@pytest.mark.parametrize("change", ["deleted", "cleaned", "truncated", "touched"])
def test_a_swap_of_segments_that_changed_is_refused_and_its_parts_go(engine, logs, folder, change):
    log = engine.get_log(T0)
    swap = prepare(logs)
    spool_swap(swap, folder, RUN, FS)
    if change == "deleted":
        log.maybe_increment_log_start_offset(3)
        log.delete_old_segments()
    elif change == "cleaned":
        append(log, ("a", "9"))
        assert engine.cleaner.clean_filthiest()
    elif change == "truncated":
        engine.truncate_to({T0: 4})
        append(log, *[("a", "z")] * 8)
    else:
        (logs / "t-0" / "00000000000000000000.log").touch()
    before, files = latest_of(log), sorted(path.name for path in (logs / "t-0").iterdir())
    checkpoint = read_checkpoint(logs / "cleaner-offset-checkpoint")
    (told,) = take(engine, folder)
    assert told.refusal is not None
    assert "not the one that was cleaned" in told.refusal or "was removed while" in told.refusal
    assert "t-0" in told.refusal and "\n" not in told.refusal
    assert read_replies(folder) == [told]
    assert latest_of(log) == before
    assert sorted(path.name for path in (logs / "t-0").iterdir()) == [n for n in files if not n.endswith(".part")]
    assert read_checkpoint(logs / "cleaner-offset-checkpoint") == checkpoint
    assert engine.cleaner.manager.states.of(T0) is None
    assert engine.cleaner.manager.checkpoints.uncleanable() == {}


def test_a_swap_whose_parts_are_gone_is_refused(engine, logs, folder):
    spool_swap(prepare(logs), folder, RUN, FS)
    (logs / "t-0" / parts_in(logs)[0]).unlink()
    (told,) = take(engine, folder)
    assert "a prepared file is missing" in told.refusal
    assert parts_in(logs) == []


def test_parts_of_other_runs_stay_with_their_runs(engine, logs, folder):
    spool_swap(prepare(logs, "aaa"), folder, "aaa", FS)
    prepare(logs, "bbb")
    (logs / "t-0" / "00000000000000000000.log").touch()
    assert take(engine, folder)[0].refusal is not None
    assert {name.split(".")[2] for name in parts_in(logs)} == {"bbb-0"}


def test_two_swaps_of_one_log_the_second_is_refused(engine, logs, folder):
    for run_id in ("aaa", "bbb"):
        spool_swap(prepare(logs, run_id), folder, run_id, FS)
    first, second = take(engine, folder)
    assert first == CommitReply("t-0", "aaa", None)
    assert (second.run_id, "not the one that was cleaned" in second.refusal) == ("bbb", True)
    assert parts_in(logs) == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("partition", "t-1", "the partition in the swap differs"),
        ("directory", "/somewhere/t-0", "prepared in /somewhere/t-0"),
        ("next_dirty_offset", 10_000, "active segment"),
        ("schema", 2, "not a prepared swap"),
    ],
)
def test_a_swap_that_is_not_for_the_log_is_refused(engine, logs, folder, field, value, words):
    path = spool_swap(prepare(logs), folder, RUN, FS)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    log = engine.get_log(T0)
    before = records_of(log)
    (told,) = take(engine, folder)
    assert words in told.refusal
    assert records_of(log) == before
    assert parts_in(logs) == []


def test_a_swap_of_the_active_segment_is_refused(engine, logs, folder):
    swap = prepare(logs)
    log = engine.get_log(T0)
    active = next(ref for ref in log.segments() if ref.base_offset == log.active_base_offset)
    (group, *_) = swap.groups
    wrong = replace(swap, groups=(replace(group, sources=(*group.sources, active)),))
    spool_swap(wrong, folder, RUN, FS)
    assert "active segment" in take(engine, folder)[0].refusal


def test_a_swap_of_a_log_that_is_no_longer_compacted_is_refused(engine, logs, folder):
    spool_swap(prepare(logs), folder, RUN, FS)
    engine.update_topic_config("t", topic_config("delete"))
    assert "no longer contains compact" in take(engine, folder)[0].refusal
    assert parts_in(logs) == []


@pytest.mark.parametrize("name", ["u-0", "nonsense"])
def test_a_swap_of_a_log_that_is_not_there_is_refused(engine, folder, logs, name):
    (folder / f"{name}.{RUN}.json").write_text(swap_to_json(prepare(logs)))
    (told,) = take(engine, folder)
    assert told.partition == name and told.refusal is not None


def test_other_files_of_the_folder_are_left_alone(engine, folder):
    for name in ("engine.json", "readme.txt", "t-0.abc.json.tmp", ".lock"):
        (folder / name).touch()
    assert take(engine, folder) == []
    assert {path.name for path in folder.iterdir()} >= {"readme.txt", "t-0.abc.json.tmp"}


def test_a_partition_that_somebody_works_on_waits_for_its_turn(engine, logs, folder):
    spool_swap(prepare(logs), folder, RUN, FS)
    engine.cleaner.manager.abort_and_pause(T0)
    assert take(engine, folder) == []
    assert read_replies(folder) == []
    engine.cleaner.manager.resume([T0])
    assert take(engine, folder) == [CommitReply("t-0", RUN, None)]


def test_a_swap_in_an_offline_directory_waits_for_the_next_engine(logs, folder):
    fs = FailingFs()
    with running(logs, logs.with_name("other"), topic=EAGER, hand_off=folder, fs=fs) as engine:
        engine.create_log(TopicPartition("u", 0), log_dir=logs.with_name("other"))
        dirty_log(engine).flush()
        engine.checkpoint_recovery_points()
        engine.checkpoint_high_watermarks()
        path = spool_swap(prepare(logs), folder, RUN, FS)
        fs.broken.add(logs)
        engine.checkpoint_recovery_points()
        assert engine.get_log(T0) is None
        assert take(engine, folder) == []
        assert path.exists()
    with running(logs, topic=EAGER, hand_off=folder) as engine:
        (told,) = take(engine, folder)
        assert "a prepared file is missing" in told.refusal


def test_a_disk_that_fails_under_the_commit_leaves_the_swap_for_the_next_start(logs, folder):
    class FailingRename(FailingFs):
        def rename(self, source, target):
            if target.name.endswith(".deleted"):
                self.broken.add(logs)
            super().rename(source, target)

    with running(logs, topic=EAGER, hand_off=folder, fs=FailingRename(), log_cleaner_enable=False) as engine:
        log = dirty_log(engine)
        log.flush()
        engine.checkpoint_recovery_points()
        engine.checkpoint_high_watermarks()
        expected = latest_of(log)
        path = spool_swap(prepare(logs), folder, RUN, FS)
        assert take(engine, folder) == []
        assert path.exists() and engine.get_log(T0) is None
        assert engine.cleaner.manager.states.of(T0) is None
    with running(logs, topic=EAGER, hand_off=folder) as engine:
        assert latest_of(engine.get_log(T0)) == expected
        (told,) = take(engine, folder)
        assert told.refusal is not None


def test_a_swap_in_a_directory_whose_lock_was_taken_away_is_left_alone(engine, logs, folder):
    path = spool_swap(prepare(logs), folder, RUN, FS)
    (logs / ".lock").unlink()
    parts = parts_in(logs)
    assert take(engine, folder) == []
    assert engine.directories()[0].is_offline
    assert path.exists() and parts_in(logs) == parts


def test_the_checkpoint_does_not_go_back(engine, logs, folder):
    log = engine.get_log(T0)
    spool_swap(prepare(logs), folder, RUN, FS)
    engine.cleaner.manager.checkpoints.update(engine.directory_of(log), T0, log.log_end_offset)
    assert take(engine, folder) == [CommitReply("t-0", RUN, None)]
    assert read_checkpoint(logs / "cleaner-offset-checkpoint") == {"t-0": log.log_end_offset}


def test_a_job_and_the_cleaner_of_the_engine_may_race(logs, folder):
    """Check that the first commit wins and the other is refused or finds nothing; the log is right in both cases."""
    for _ in range(3):
        with running(logs, topic=EAGER, hand_off=folder, log_cleaner_enable=False) as engine:
            log = engine.create_log(T0)
            append(log, *[(key, str(number)) for number in range(6) for key in "ab"])
            log.flush()
            engine.checkpoint_recovery_points()
            engine.checkpoint_high_watermarks()
            expected = latest_of(log)
            spool_swap(prepare(logs), folder, RUN, FS)
            start, answers = threading.Barrier(2), []

            def commit(engine=engine, start=start, answers=answers):
                start.wait(timeout=LIMIT_SECONDS)
                while not answers:
                    answers.extend(take(engine, folder))

            def clean(engine=engine, start=start):
                start.wait(timeout=LIMIT_SECONDS)
                engine.cleaner.clean_filthiest()

            threads = [threading.Thread(target=commit), threading.Thread(target=clean)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=LIMIT_SECONDS)
            assert len(answers) == 1
            assert latest_of(log) == expected
            assert len(records_of(log)) < log.log_end_offset
            assert parts_in(logs) == []
            clock_of(engine).advance(1)


def test_an_engine_says_which_directories_it_owns_and_takes_that_back(logs, folder):
    with running(logs, topic=EAGER, hand_off=folder):
        assert json.loads((folder / "engine.json").read_text())["log_dirs"] == [str(logs.resolve())]
    assert not (folder / "engine.json").exists()


def test_an_engine_that_cannot_start_takes_back_nothing_that_another_said(engine, logs, folder):
    with pytest.raises(DirectoryInUseError):
        manager_of(logs, hand_off=folder).start()
    assert (folder / "engine.json").exists()


def test_an_engine_does_not_start_with_a_folder_inside_its_directory(logs):
    with pytest.raises(UsageError, match="inside a log directory"):
        manager_of(logs, hand_off=logs / "hand-off").start()
    with running(logs):
        pass


def test_the_json_of_a_real_swap_comes_back(engine, logs):
    swap = prepare(logs)
    assert swap_from_json(swap_to_json(swap)) == swap
