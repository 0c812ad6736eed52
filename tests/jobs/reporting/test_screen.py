"""The screen of a report: its columns, rows and lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from sediment.jobs.process.standard_output import SafeConsole
from sediment.jobs.reporting.columns import (
    TableColumn,
    bytes_column,
    change_column,
    name_and_status,
    number_column,
    offset_column,
    status_counts,
    text_column,
)
from sediment.jobs.reporting.run_report import ENDLESS_WIDTH
from sediment.jobs.reporting.screen import Screen, View, kept_folders, named, screen_text
from sediment.segment_io.format.names import by_number
from tests.jobs.terminal_text import StreamText


@dataclass(frozen=True)
class Row:
    partition: str
    status: str = "compacted"
    reason_code: str | None = None
    reason: str | None = None
    bytes_before: int = 0
    bytes_after: int | None = None
    segments: int = 1
    log_dir: str = "/d1"


COLUMNS: tuple[TableColumn[Row], ...] = (
    *name_and_status(),
    number_column("segments", lambda row: row.segments, rank=2),
    text_column("reason", lambda row: row.reason or "", rank=3),
    change_column("bytes", lambda row: row.bytes_before, lambda row: row.bytes_after, shown=str, rank=1),
)


def idle(number: int, code: str = "nothing-dirty", size_bytes: int = 0) -> Row:
    return Row(f"idle-{number}", "skipped", code, f"reason {number}", size_bytes)


def shown(rows: Sequence[Row], *, width: int = 80, view: View | None = None, terminal: bool = False) -> str:
    text = StreamText(is_terminal=terminal)
    console = SafeConsole(
        file=text, width=width, force_terminal=terminal, color_system="standard" if terminal else None
    )
    screen = Screen(console, view or View())
    screen.partitions(rows, COLUMNS)
    screen.reasons(row for row in rows if row.reason)
    return text.getvalue()


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:] if line.startswith(" ")]


def test_a_narrow_terminal_loses_columns_by_rank_and_names_them() -> None:
    row = Row("orders-0", bytes_before=123_456_789, bytes_after=5, segments=3)
    wide, narrow = shown([row], width=80), shown([row], width=45)
    assert wide.splitlines()[0].split() == ["partition", "status", "segments", "bytes"]
    assert narrow.splitlines()[0].split() == ["partition", "status", "bytes"]
    assert "123456789 → 5" in narrow
    assert "no room for segments" in narrow


@given(
    st.lists(
        st.builds(
            Row,
            partition=st.text("abc.-_0123456789", min_size=1, max_size=60).map(lambda name: f"{name}-0"),
            status=st.sampled_from(["compacted", "skipped", "failed"]),
            bytes_before=st.integers(0, 10**15),
            bytes_after=st.none() | st.integers(0, 10**15),
            segments=st.integers(0, 10**6),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(20, 130),
)
def test_no_name_and_no_number_is_cut_at_any_width(rows: list[Row], width: int) -> None:
    text = shown(rows, width=width)
    words = text.split()
    for row in rows:
        assert row.partition in words
        assert row.status in words
    table = [line for line in text.splitlines() if line.startswith((" ", "─")) and not line.startswith("  ")]
    assert all(len(line) <= width for line in table)


def test_rows_are_lists_where_not_even_the_first_columns_have_room() -> None:
    name = f"{'a' * 90}-0"
    assert shown([Row(name, segments=7)], width=80).splitlines()[:3] == [
        name,
        "  status     compacted",
        "  segments   7",
    ]


def test_a_name_that_is_too_long_for_the_table_gets_a_line_above_its_row() -> None:
    long = f"{'a' * 90}-0"
    rows = [Row("b-0", segments=7), Row(long, segments=10), Row("c-0", segments=8)]
    assert shown(rows).rstrip().splitlines() == [
        " partition  status     segments  bytes",
        "───────────────────────────────────────",
        " b-0        compacted         7      0",
        long,
        "            compacted        10      0",
        " c-0        compacted         8      0",
    ]


def test_a_few_long_names_do_not_cost_the_other_rows_a_column() -> None:
    long = f"{'a' * 60}-0"
    rows = [*(Row(f"t-{number}", segments=7) for number in range(7)), Row(long, segments=8)]
    lines = shown(rows).rstrip().splitlines()
    assert lines[0].split() == ["partition", "status", "segments", "bytes"]
    assert lines[-2:] == [long, "            compacted         8      0"]
    assert "no room for segments" in shown(rows[1:])


def test_many_idle_partitions_are_one_line_on_a_terminal_and_rows_in_a_pipe() -> None:
    rows = [Row("busy-0"), *(idle(number, size_bytes=number) for number in range(300))]
    text = shown(rows, terminal=True)
    assert names(text) == ["busy-0"]
    assert text.splitlines()[-1] == "nothing-dirty: 300 partitions with 44.9 kB; for example idle-299: reason 299"
    for width in (80, ENDLESS_WIDTH):  # $COLUMNS may limit the width of a pipe
        assert len(names(shown(rows, width=width))) == 301


def test_empty_partitions_are_folded_on_a_terminal_and_count_as_changed() -> None:
    rows = [Row("busy-0", bytes_before=1), *(Row(f"t-{number}") for number in range(20)), idle(0)]

    def listed(*, terminal: bool, view: View) -> str:
        text = StreamText(is_terminal=terminal)
        console = SafeConsole(file=text, width=80, force_terminal=terminal, color_system=None)
        Screen(console, view).partitions(rows, COLUMNS, is_empty=lambda row: not row.bytes_before)
        return text.getvalue()

    assert names(listed(terminal=True, view=View(changed=True))) == ["busy-0"]
    assert len(names(listed(terminal=False, view=View(changed=True)))) == 21
    by_topic = listed(terminal=True, view=View(changed=True, by_topic=True))
    assert [line.split()[:2] for line in by_topic.splitlines()[2:4]] == [["busy", "1"], ["t", "20"]]


def test_a_few_idle_partitions_are_rows() -> None:
    assert names(shown([idle(number) for number in range(10)])) == [f"idle-{number}" for number in range(10)]


def test_changed_shows_no_idle_partition() -> None:
    text = shown([Row("busy-0"), idle(0)], view=View(changed=True))
    assert "busy-0" in text
    assert "idle" not in text


@pytest.mark.parametrize("view", [View(fails_on_unknown=True), View(changed=True, fails_on_unknown=True)])
def test_a_partition_that_makes_the_run_fail_is_never_hidden(view: View) -> None:
    unknown = [idle(number, "policy-unknown", number) for number in range(20)]
    text = shown([*unknown, idle(20)], view=view)
    assert {row.partition for row in unknown} <= set(names(text))
    assert "policy-unknown: 20 partitions with 190 B; for example idle-19: reason 19" in text
    assert "idle-0" not in shown(unknown, view=View(changed=True))


def test_numbers_are_sorted_from_the_largest_and_names_in_natural_order() -> None:
    rows = [Row(f"t-{number}", bytes_before=size) for number, size in ((10, 5), (2, 7), (1, 6))]
    assert names(shown(rows, view=View(sort="bytes"))) == ["t-2", "t-1", "t-10"]
    assert names(shown(rows, view=View(sort="partition"))) == ["t-1", "t-2", "t-10"]


def test_a_roll_up_has_a_row_for_each_topic_with_its_sums() -> None:
    rows = [Row("b-0", bytes_before=1), Row("a-x-0", bytes_before=10, bytes_after=4), idle(0, size_bytes=2)]
    rows += [Row("a-x-1", "failed", "no-space", "full", bytes_before=5)]
    lines = [line.split("  ") for line in shown(rows, view=View(by_topic=True)).splitlines()[2:5]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["a-x", "2", "1 compacted, 1 failed", "2", "15 → 9"],
        ["b", "1", "compacted", "1", "1"],
        ["idle", "1", "skipped: nothing-dirty", "1", "reason 0", "2"],
    ]


def test_offsets_of_several_partitions_are_blank_and_sort_nothing() -> None:
    column: TableColumn[Row] = offset_column("start", lambda row: row.segments)
    one, two = [Row("a-0", segments=1500)], [Row("b-0", segments=4000), Row("b-1", segments=5000)]
    assert [column.show(rows) for rows in (one, two)] == ["1,500", ""]
    assert [column.sort_number(rows) for rows in (one, two)] == [1500, 0]


def test_a_reason_of_one_partition_names_it_and_its_status_has_a_colour() -> None:
    text = shown([Row("t-0", "failed", "no-space", "the disk is full"), idle(1)], terminal=True)
    assert "\x1b[31mfailed: no-space" in text
    assert "t-0: the disk is full" in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown([Row("t-0", "failed")], terminal=True)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_variable_that_asks_for_colours_leaves_out_no_row_and_no_column_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    rows = [Row("t" * 100 + "-0"), *map(idle, range(300))]
    pipe = screen_text(lambda screen: screen.partitions(rows, COLUMNS))
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = screen_text(lambda screen: screen.partitions(rows, COLUMNS))
    assert "\x1b[" in coloured
    assert Text.from_ansi(coloured).plain.rstrip() == pipe.rstrip()


def test_digits_have_no_colour() -> None:
    text = StringIO()
    Screen(SafeConsole(file=text, force_terminal=True, width=80)).say("3 partitions with 5.0 MB at 12:00")
    assert text.getvalue() == "3 partitions with 5.0 MB at 12:00\n"


def test_text_from_data_cannot_reach_the_terminal() -> None:
    assert "\x1b[2J" not in shown([Row("t\x1b[2J-0")], terminal=True)


def test_identical_failures_share_a_line() -> None:
    text = StringIO()
    screen = Screen(SafeConsole(file=text, width=200))
    screen.failures((f"t-{number}", "the run was stopped") for number in range(75))
    first = ", ".join(f"t-{number}" for number in range(10))
    assert text.getvalue() == f"{first} and 65 more (75 partitions): the run was stopped\n"


def test_bytes_are_summed_and_shown_for_people() -> None:
    column: TableColumn[Row] = bytes_column("bytes", lambda row: row.bytes_before)
    assert column.show([Row("t-0", bytes_before=1500), Row("t-1", bytes_before=500)]) == "2.0 kB"


@given(st.lists(st.integers(0, 500), unique=True))
def test_rows_of_equal_size_stay_in_the_order_of_partitions(numbers: list[int]) -> None:
    rows = [Row(f"t-{number}") for number in sorted(numbers)]
    shown_names = names(shown(rows, width=1 << 14, view=View(sort="bytes")))
    assert shown_names == sorted(shown_names, key=by_number)


def test_differences_left_out_are_counted_with_their_partitions() -> None:
    text = StringIO()
    screen = Screen(SafeConsole(file=text, width=200))
    screen.failures(((f"t-{number % 4}", f"difference {number}") for number in range(35)), noun="difference")
    assert text.getvalue().splitlines()[-1] == "5 further differences in 4 partitions; --json lists them"


def test_a_terminal_shows_failures_above_the_other_rows() -> None:
    rows = [Row("a"), Row("b", "failed", "corrupt-batch"), Row("c"), Row("d", "quarantined", "corrupt-batch")]
    assert names(shown(rows, terminal=True)) == ["b", "d", "a", "c"]
    assert names(shown(rows, width=ENDLESS_WIDTH)) == ["a", "b", "c", "d"]


def stopped(number: int) -> Row:
    return Row(f"late-{number}", "failed", "stopped", "the run was stopped before this partition")


def after_a_stop(rows: Sequence[Row], *, terminal: bool, view: View | None = None) -> list[str]:
    text = StreamText(is_terminal=terminal)
    screen = Screen(SafeConsole(file=text, width=400, color_system=None), view or View())
    screen.partitions(rows, COLUMNS)
    screen.failed(rows)
    return text.getvalue().splitlines()


def test_partitions_that_a_stopped_run_did_not_finish_are_one_line_with_their_number() -> None:
    rows = [Row("a-0"), Row("b-0", "failed", "no-space", "the disk is full"), *map(stopped, range(75))]
    first = ", ".join(f"late-{number}" for number in range(10))
    lines = after_a_stop(rows, terminal=True)
    assert names("\n".join(lines)) == ["b-0", "a-0"]
    assert lines[-2:] == [
        "b-0: the disk is full",
        "stopped: 75 of 77 partitions are not done; run the same command again to finish them: "
        f"{first} and 65 more (75 partitions)",
    ]
    pipe = after_a_stop(rows, terminal=False)
    assert sum(line.startswith(" late-") for line in pipe) == 75
    assert pipe[-2:] == lines[-2:]


def test_one_partition_that_a_stopped_run_did_not_finish_is_one() -> None:
    last = after_a_stop([Row("a-0"), stopped(1)], terminal=True)[-1]
    assert last.startswith("stopped: 1 of 2 partitions is not done")


def test_a_stopped_partition_is_not_shown_as_failed_and_comes_after_real_failures() -> None:
    rows = [stopped(0), Row("b-0", "failed", "no-space", "full"), Row("late-1")]
    lines = after_a_stop(rows, terminal=True)
    assert names("\n".join(lines)) == ["b-0", "late-0", "late-1"]
    assert lines[3].split()[:2] == ["late-0", "stopped"]
    by_topic = after_a_stop(rows, terminal=True, view=View(by_topic=True))
    assert "1 stopped, 1 compacted" in by_topic[3]
    assert status_counts(rows) == "1 compacted, 1 stopped, 1 failed"


def test_a_dry_run_says_what_would_happen_and_sorts_by_the_same_names() -> None:
    rows = [Row("a-0", "skipped", "nothing-dirty"), Row("b-0"), Row("c-0", "failed", "no-space", "full")]
    text = StringIO()
    Screen(SafeConsole(file=text, width=80), View(sort="status")).partitions(rows, COLUMNS, dry_run=True)
    assert text.getvalue().splitlines()[0].split()[:3] == ["partition", "would", "be"]
    assert names(text.getvalue()) == ["b-0", "c-0", "a-0"]
    assert status_counts(rows, dry_run=True) == "1 would be compacted, 1 skipped, 1 failed"


def replicas() -> list[Row]:
    """Return three replicas of t-0 and one of t-1, by partition and log directory."""
    return [
        *(Row("t-0", "failed", "bad", f"reason {disk}", 7, 5, log_dir=disk) for disk in ("/b1", "/b2", "/b3")),
        Row("t-1", "failed", "other", "reason", 1, 1, log_dir="/b1"),
        Row("u-0", log_dir="/b2"),
        Row("u-1", log_dir="/b3"),
    ]


def test_rows_of_several_directories_have_the_directory() -> None:
    lines = shown(replicas()).splitlines()
    assert lines[0].split()[:3] == ["partition", "log", "dir"]
    assert [tuple(line.split()[:2]) for line in lines[2:6]] == [
        *(("t-0", disk) for disk in ("/b1", "/b2", "/b3")),
        ("t-1", "/b1"),
    ]
    assert "bad: 3 replicas of 1 partition with 21 B; for example t-0 in /b1: reason /b1" in lines
    assert "t-1: reason" in lines


def test_a_directory_that_only_informs_makes_room_for_numbers_and_one_that_tells_replicas_apart_stays() -> None:
    disks = [Row("t-0", bytes_before=5), Row("t-1", bytes_before=5, log_dir="/another/disk")]
    assert "log dir" in shown(disks)
    narrow = shown(disks, width=40)
    assert narrow.splitlines()[0].split() == ["partition", "status", "segments", "bytes"]
    assert "no room for log dir" in narrow
    assert "log dir" in shown(replicas(), width=40).splitlines()[0]
    assert "log dir" not in shown([Row("t-0"), Row("t-1")])


def test_a_roll_up_counts_a_partition_once_and_its_replicas_apart() -> None:
    text = shown(replicas(), view=View(by_topic=True, sort="partitions"))
    assert [line.split()[:4] for line in text.splitlines()[2:4]] == [
        ["t", "2", "(4", "replicas)"],
        ["u", "2", "2", "compacted"],
    ]
    assert "log dir" not in text


def test_the_name_of_a_failed_replica_has_its_directory() -> None:
    text = screen_text(lambda screen: screen.failed(replicas()))
    assert text.splitlines() == [
        *(f"t-0 in {disk}: reason {disk}" for disk in ("/b1", "/b2", "/b3")),
        "t-1: reason",
    ]


def test_a_list_of_names_has_a_partition_once_however_many_replicas_it_has() -> None:
    partitions = [f"t-{number}" for number in range(12) for _replica in range(3)]
    assert named(partitions[:9]) == "t-0, t-1, t-2"
    assert named(partitions).endswith("t-9 and 2 more (12 partitions)")


def test_each_directory_that_keeps_files_has_its_name() -> None:
    assert kept_folders("{log_dir}-before", replicas()) == "/b1-before and /b2-before and /b3-before"
    assert kept_folders("/kept", replicas()) == "/kept"
    assert kept_folders("{log_dir}-before", []) == "{log_dir}-before"


def test_a_warning_names_the_directories_of_replicas() -> None:
    @dataclass(frozen=True)
    class Warned(Row):
        warnings: tuple[str, ...] = ("look",)

    rows = [Warned("t-0"), Warned("t-0", log_dir="/d2"), Warned("t-1")]
    assert screen_text(lambda screen: screen.warnings(rows)) == "t-0 in /d1, t-0 in /d2, t-1: look\n"
