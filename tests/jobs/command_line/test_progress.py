"""Progress on a terminal, in a notebook and in a file, and silence in the log."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from sediment.jobs.command_line.progress import Progress, progress_line, stages_of
from sediment.jobs.process.standard_output import LogConsole
from tests.waiting import wait_until


def terminal(width=100):
    return Console(file=StringIO(), force_terminal=True, width=width)


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
        progress.advance(1000)
        assert wait_for(console, "/s")


def test_a_bar_of_large_counts_fits_one_line_of_80_columns():
    console = terminal(width=80)
    with Progress(console, partitions=182, total_bytes=622_200, phase="cloning") as progress:
        progress.advance(115_600, partitions=10)
        assert wait_for(console, "cloning 10/182 partitions")
        progress.advance(100_000, partitions=10)
        assert wait_for(console, "B/s")
        assert wait_for(console, "215.6/622.2 kB")


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_a_bar_shows_the_average_speed_since_the_work_began():
    console, clock = terminal(), Clock()
    with Progress(console, partitions=4, total_bytes=8_000_000, clock=clock) as progress:
        progress.advance(2_000_000)  # a partition that is left out
        clock.seconds = 30  # Spark starts
        progress.watch(lambda: 0)
        clock.seconds = 40
        progress.advance(1_000_000)
        clock.seconds = 40.001  # two partitions end together
        progress.advance(1_000_000)
        assert wait_for(console, "200.0 kB/s")
        assert wait_for(console, "0:20")


def test_a_file_gets_a_line_every_ten_seconds_and_none_of_a_short_run():
    console, clock = Console(file=StringIO(), width=40), Clock()
    with Progress(console, partitions=4, total_bytes=4_000_000, phase="cleaning", clock=clock) as progress:
        for clock.seconds in (1, 9, 10, 11, 20):
            progress.advance(500_000, partitions=clock.seconds in (10, 20))
    assert shown(console).splitlines() == [
        "cleaning 1/4 partitions: 1.5 MB of 4.0 MB in 0:10, 150.0 kB/s, about 0:17 left",
        "cleaning 2/4 partitions: 2.5 MB of 4.0 MB in 0:20, 125.0 kB/s, about 0:12 left",
    ]


def test_the_log_of_a_caller_gets_no_progress():
    stream, clock = StringIO(), Clock()
    with Progress(LogConsole(stream, quiet=False), partitions=1, total_bytes=10, clock=clock) as progress:
        clock.seconds = 60
        progress.advance(10)
    assert stream.getvalue() == ""


def test_a_line_has_no_speed_before_the_first_byte_and_counts_tasks_as_such():
    assert progress_line("cleaning", 0, 5, 3700, unit="B", speed=0) == "cleaning: 0 B of 5 B in 1:01:40"
    assert progress_line("Spark", 3, 5, 10, unit=" tasks", speed=0) == "Spark: 3 of 5 tasks in 0:10"


def test_what_is_under_way_counts_before_it_is_done():
    console = terminal()
    with Progress(console, partitions=1, total_bytes=4000) as progress:
        progress.watch(lambda: 3000)
        assert wait_for(console, "3.0/4.0 kB")
        assert wait_for(console, "0/1 partition ")
        assert "1/1 partition" not in shown(console)


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
