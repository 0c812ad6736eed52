"""Progress on a terminal and in a notebook, and silence everywhere else."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from sediment.jobs.command_line.progress import Progress, stages_of
from tests.waiting import wait_until


def terminal():
    return Console(file=StringIO(), force_terminal=True, width=100)


def shown(console):
    return console.file.getvalue()


def wait_for(console, words):
    wait_until(lambda: words in shown(console))
    return True


def test_a_terminal_sees_partitions_and_bytes():
    console = terminal()
    with Progress(console, partitions=2, total_bytes=4000) as progress:
        progress.advance(1000)
        assert wait_for(console, "1/2 partitions")
        assert wait_for(console, "1.0/4.0 kB")


def test_what_is_under_way_counts_before_it_is_done():
    console = terminal()
    with Progress(console, partitions=1, total_bytes=4000) as progress:
        progress.watch(lambda: 3000)
        assert wait_for(console, "3.0/4.0 kB")
        assert "1/1 partitions" not in shown(console)


@pytest.mark.filterwarnings("ignore::tqdm.TqdmWarning")  # there are no widgets here
def test_a_notebook_sees_partitions_and_bytes(monkeypatch, capsys):
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    console = Console(file=StringIO())
    with Progress(console, partitions=2, total_bytes=4000) as progress:
        progress.watch(lambda: 500)
        progress.advance(1000)
        assert "1/2 partitions:  38%" in capsys.readouterr().err
    assert shown(console) == ""
    with Progress(Console(file=StringIO(), quiet=True), partitions=1, total_bytes=10) as progress:
        progress.advance(10)
    assert "partitions" not in capsys.readouterr().err


def test_without_a_terminal_or_with_quiet_nothing_is_drawn_or_polled(sc):
    for console in (Console(file=StringIO()), Console(file=StringIO(), force_terminal=True, quiet=True)):
        with Progress(console, partitions=1, total_bytes=10) as progress:
            progress.watch(lambda: 1 // 0)
            progress.advance(10)
        with stages_of(sc, console):
            sc.parallelize([1], 1).collect()
        assert shown(console) == ""


def test_tasks_of_a_stage_are_shown_while_it_runs(sc, tmp_path):
    console, seen = terminal(), tmp_path / "seen"

    def until_seen(_):
        wait_until(seen.exists)

    with stages_of(sc, console), ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: sc.parallelize(range(4), 4).foreach(until_seen))
        try:
            assert wait_for(console, "/4 tasks")
        finally:
            seen.touch()
        running.result()
