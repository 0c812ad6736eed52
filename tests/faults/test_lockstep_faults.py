"""Commits of several partitions in lockstep, in which one operation fails."""

import errno
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.lockstep import Steps
from sediment.engine.directory.swap import commit_steps, discard_parts
from sediment.jobs.cleaning.commit_threads import CommitThreads
from sediment.segment_io.errors import CommitStateUnknownError
from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import Fail, FaultyFs, read_image, write_image
from tests.faults.swap_scenario import (
    assert_start_repairs,
    assert_whole,
    committed_groups,
    full_scenario,
    prepare,
)


def outcome_of(swap: PreparedSwap, fs: Fs) -> Steps[Exception | None]:
    try:
        yield from commit_steps(swap, fs)
    except (OSError, CommitStateUnknownError) as error:
        return error
    return None


def committed_together(swaps: Sequence[PreparedSwap], fs: Fs) -> list[Exception | None]:
    threads = CommitThreads(threading.Event(), in_lockstep=True)
    try:
        return threads.perform_all([outcome_of(swap, fs) for swap in swaps])
    finally:
        threads.finish_commits()
        threads.finish_removals()


def test_an_error_of_one_commit_changes_nothing_for_the_others(tmp_path: Path):
    scenarios = [full_scenario(tmp_path / name) for name in "ab"]
    swaps = [prepare(directory, given.groups, Fs(), synced=False) for directory, given in scenarios]
    with_parts = [read_image(directory) for directory, _ in scenarios]
    outcomes = set()
    for number in count(1):
        for (directory, _), image in zip(scenarios, with_parts, strict=True):
            write_image(directory, image)
        errors = committed_together(swaps, FaultyFs(Fail(number, errno.EIO)))
        for (directory, given), error in zip(scenarios, errors, strict=True):
            if error is None:
                assert assert_whole(directory, given) == len(given.groups)
            elif isinstance(error, CommitStateUnknownError):
                outcomes.add("unknown")
                assert_start_repairs(directory, given)
            else:
                outcomes.add("untouched")
                committed = committed_groups(directory, given)
                discard_parts(directory, "run", Fs())
                assert assert_whole(directory, given) == committed
        if errors == [None] * len(scenarios):
            break
        assert errors.count(None) >= len(scenarios) - 1
    assert outcomes == {"untouched", "unknown"}
