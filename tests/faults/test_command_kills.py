"""Commands that get kill -9 at random moments while they work, and what the next run makes of the files.

The crash matrix stops a command after each of its steps; here the process ends anywhere, with all its threads.
SEDIMENT_COMMAND_KILLS is the number of kills of each command that come before its end (2; the target `crash` has 100),
SEDIMENT_CRASH_SEED the seed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.faults.crash_scenarios import crash_scenarios
from tests.faults.fs_trace import Tree, contents, read_tree, write_tree
from tests.faults.inline_spark import inline_spark
from tests.faults.test_clone_faults import CLONE, WAYS, assert_whole_or_none, source
from tests.faults.test_clone_faults import run as clone
from tests.jobs.cloning.clones import logs_of
from tests.waiting import LIMIT_SECONDS

__all__ = ["source"]  # a fixture

KILLS = int(os.environ.get("SEDIMENT_COMMAND_KILLS", "2"))
SEED = int(os.environ.get("SEDIMENT_CRASH_SEED", "0"))
MANY = 100
"""The number of kills from which on some must come between two changes of files."""

# The process from which all commands are forked has imported everything, and has one thread.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])

Run = Callable[[Path], object]
"""A command that works below a directory; it can be pickled."""


def kills(root: Path, scratch: Path, run: Run, restore: Callable[[], None]) -> Iterator[tuple[str, Tree]]:
    """Yield the files below `root` after each kill of `run` before its end, with a text that says when it came.

    Each process first does the same in `scratch`, so that its compiled code is loaded when it begins.
    """
    chance = random.Random(SEED)
    restore()
    _, whole_seconds = _run_for(run, root, scratch, seconds=LIMIT_SECONDS)
    states = set()
    hits = 0
    while hits < KILLS:
        restore()
        seconds = chance.uniform(0, whole_seconds)
        has_ended, _ = _run_for(run, root, scratch, seconds)
        if has_ended:
            continue
        hits += 1
        tree = read_tree(root)
        states.add(frozenset(contents(tree)))
        yield f"kill {hits}, {seconds:.3f} s of {whole_seconds:.3f} s after the start", tree
    assert KILLS < MANY or len(states) > 3


def _run_for(run: Run, root: Path, scratch: Path, seconds: float) -> tuple[bool, float]:
    """Call `run` in a process of its own and kill that `seconds` after it began.

    Return whether the call had ended by then, and after how many seconds.
    """
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    shutil.rmtree(scratch, ignore_errors=True)
    process = _PROCESSES.Process(target=_run_twice, args=(run, root, scratch, sender))
    process.start()
    sender.close()
    with receiver:
        receiver.recv()
        began = time.monotonic()
        receiver.poll(seconds)
        ended = time.monotonic()
        process.kill()
        process.join()
        try:
            receiver.recv()
        except EOFError:
            assert process.exitcode == -signal.SIGKILL, "the command failed by itself"
            return False, ended - began
    return True, ended - began


def _run_twice(run: Run, root: Path, scratch: Path, sender: Connection) -> None:
    run(scratch)
    sender.send("begins")
    run(root)
    sender.send("has ended")


def _compact(name: str, root: Path) -> None:
    scenario = crash_scenarios()[name]
    if root.exists():
        scenario.root = root
        scenario.run()
    else:
        scenario.prepare(root)


def _clone(source: Path, way: str, root: Path) -> None:
    root.mkdir(exist_ok=True)
    with inline_spark():
        clone(source, root, way)


ALL = [name for name in crash_scenarios() if name.startswith("compact")]
COMMANDS = ALL if KILLS >= MANY else ["compact, originals kept"]
CLONES = list(WAYS) if KILLS >= MANY else ["compacted", "linked"]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment_compact_loses_nothing_and_the_next_run_completes_it(tmp_path: Path, name: str) -> None:
    scenario = crash_scenarios()[name]
    root = tmp_path / "root"
    scenario.prepare(root)
    for what, tree in kills(
        root, tmp_path / "scratch", partial(_compact, name), lambda: scenario.restore(scenario.before)
    ):
        try:
            scenario.check(scenario, tree)
        except AssertionError as error:
            raise AssertionError(f"{name}: {what}: {error}") from error


@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", CLONES)
def test_killed_at_any_moment_clone_leaves_a_whole_clone_or_none(source: Path, tmp_path: Path, way: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    empty, before = read_tree(root), contents(read_tree(source))
    with inline_spark():
        assert clone(source, root, way).status == 0
        expected = logs_of(root / CLONE)
        for what, tree in kills(
            root, tmp_path / "scratch", partial(_clone, source, way), lambda: write_tree(root, empty)
        ):
            write_tree(root, tree)
            assert_whole_or_none(source, root, way, expected, what)
            assert contents(read_tree(source)) == before, what
