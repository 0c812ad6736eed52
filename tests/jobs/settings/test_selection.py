"""`--partition` and `--topic`: the same globs select the same partitions in every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.settings.selection import Selection, topic_of
from sediment.segment_io.errors import UsageError
from tests.jobs.log_dirs import sediment
from tests.segments import write_segment

NAMES = ["orders-0", "orders-1", "orders-eu-0", "clicks-0"]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / "logs" / name).mkdir(parents=True)
        write_segment(tmp_path / "logs" / name, 0, [])
    (tmp_path / "logs" / ".kafka_cleanshutdown").touch()
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("partitions", "topics", "selected"),
    [
        ((), (), NAMES),
        ((), ("orders",), ["orders-0", "orders-1"]),
        ((), ("orders*",), ["orders-0", "orders-1", "orders-eu-0"]),
        (("*-0",), ("orders", "clicks"), ["orders-0", "clicks-0"]),
        (("orders-*",), ("clicks",), []),
    ],
)
def test_both_globs_have_to_match(partitions: tuple[str, ...], topics: tuple[str, ...], selected: list[str]) -> None:
    selection = Selection(partitions, topics)
    assert [name for name in NAMES if selection.includes(name)] == selected
    assert selection.is_narrowed == bool(partitions or topics)


def test_a_topic_selects_its_future_replicas() -> None:
    future = "moving-0.0123abc-future"
    selection = Selection(topics=("moving",))
    selection.check([future], where="logs")
    assert selection.includes(future)
    with pytest.raises(UsageError, match="matches no topic of logs"):
        Selection(topics=("moving-0.*",)).check([future], where="logs")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("a-b-3", "a-b"),
        ("a-3.0f-future", "a"),
        ("a-3.0f-delete", "a"),
        ("a-3.0f-stray", "a"),
        ("a-x", "a"),
        ("a", "a"),
    ],
)
def test_the_topic_of_a_directory_does_not_depend_on_its_state(name: str, topic: str) -> None:
    assert topic_of(name) == topic


def test_a_topic_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match=r"--topic 'order' matches no topic of logs.*orders") as error:
        Selection(topics=("order",)).check(NAMES, where="logs")
    assert "orders" in str(error.value)


@pytest.mark.parametrize(
    ("partitions", "topics", "error"),
    [
        (
            ("orders-*",),
            ("clicks",),
            r"--topic 'clicks' matches no topic of the partitions that --partition selects in",
        ),
        (("orders-0",), ("orders", "clicks"), r"--topic 'clicks' matches no topic of the partitions"),
        (("orders-0", "clicks-0"), ("orders",), r"--partition 'clicks-0' matches no partition of the topics that"),
    ],
)
def test_globs_that_select_nothing_together_are_an_error(
    partitions: tuple[str, ...], topics: tuple[str, ...], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        Selection(partitions, topics).check(NAMES, where="logs")


def test_globs_that_select_something_together_are_accepted() -> None:
    Selection(("*-0",), ("orders*", "clicks")).check(NAMES, where="logs")


def test_a_run_that_both_globs_leave_empty_ends_with_2_unless_that_is_allowed(log_dir: Path) -> None:
    options = ("--topic", "clicks", "--partition", "orders-0", "--dry-run", "--broker-defaults")
    outcome = sediment("expire", log_dir, *options)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert sediment("expire", log_dir, *options, "--allow-empty-selection").status == 0


@pytest.mark.parametrize("command", ["plan", "compact", "expire", "recover", "reencode"])
def test_a_topic_that_matches_nothing_ends_with_2(log_dir: Path, command: str) -> None:
    options = ["--codec", "zstd"] if command == "reencode" else []
    outcome = sediment(command, log_dir, "--topic", "nothing", *options)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "--topic 'nothing' matches no topic" in outcome.stderr


@pytest.mark.parametrize("command", ["expire", "recover"])
def test_commands_select_by_topic_and_show_one_row_for_it(log_dir: Path, command: str) -> None:
    found = sediment(command, log_dir, "--dry-run", "--json", "--changed", "--topic", "orders", "--broker-defaults")
    assert list(found.partitions()) == ["orders-0", "orders-1"]
    rolled = sediment(command, log_dir, "--dry-run", "--by-topic", "--sort", "bytes", "--bytes", "--broker-defaults")
    assert rolled.status == 0, rolled.stderr
    rows = [line.split()[:2] for line in rolled.stdout.splitlines() if line.startswith(" ")]
    assert rows == [["topic", "partitions"], ["clicks", "1"], ["orders", "2"], ["orders-eu", "1"]]


def test_an_unknown_column_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    outcome = sediment("plan", tmp_path / "missing", "--sort", "size")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "'size' is not one of" in outcome.stderr
