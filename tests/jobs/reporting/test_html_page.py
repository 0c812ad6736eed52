"""The HTML page of a run: it has the content of the JSON report, escapes text from disk, and loads nothing."""

from __future__ import annotations

import platform
import re
from html.parser import HTMLParser

import pytest

from sediment.jobs.reporting.html_page import SHOWN_ROWS, STRIP_UNITS, duration, make_page, name_ranges, render_html
from sediment.jobs.settings.resolve import Settings
from sediment.verification.report import CHECKS
from sediment.version import __version__

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
_VOID = {"meta", "input"}


class Page(HTMLParser):
    """A parsed page: its tags with attributes, its text, and rows of its tables; unclosed tags are an error."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in (attributes.get("class") or "").split()]


def partition(name="orders-0", **fields):
    return {
        "partition": name,
        "log_dir": "/logs",
        "status": "compacted",
        "reason_code": None,
        "reason": None,
        "bytes_before": 1_000_000,
        "bytes_after": 250_000,
        "messages_read": 5000,
        "messages_written": 1200,
        **fields,
    }


def document(*partitions, **fields):
    return {
        "schema": 1,
        "command": "compact",
        "run_id": "0123abc",
        "now_ms": NOW_MS,
        "seconds": 2.5,
        "dry_run": False,
        "partitions": list(partitions),
        **fields,
    }


def test_the_page_has_the_figures_of_the_run():
    page = Page(render_html(document(partition(), partition("orders-1"), seconds_by_stage={"clean": 1.5})))
    for words in (
        "sediment compact",
        "run 0123abc",
        "2023-11-14 22:13:20 UTC",
        "2.5 s",
        "2 compacted",
        "2.0 MB → 500.0 kB",
        "75% saved",
        "10,000 → 2,400",
        "clean",
        "1.5 s",
        "/logs",
    ):
        assert words in page.text, words


def test_tombstones_say_how_many_wait_and_when_they_go():
    waiting = partition(
        tombstones_waiting=7, first_delete_horizon_ms=NOW_MS + 1000, last_delete_horizon_ms=NOW_MS + DAY_MS - 1
    )
    late = partition(
        "b-0", tombstones_waiting=2, first_delete_horizon_ms=NOW_MS - 5, last_delete_horizon_ms=NOW_MS + 9 * DAY_MS
    )
    page = Page(render_html(document(waiting, late)))
    assert "7, on 2023-11-14 22:13:21 UTC to on 2023-11-15 22:13:19 UTC" in page.text
    assert "tombstones waiting 9 the first expire now" in page.text
    waits = {bar.label: bar.text for bar in make_page(document(waiting, late)).waits}
    assert waits == {"within a day": "7", "later": "2"}


def test_records_without_a_key_and_warnings_are_shown_and_a_partition_that_stayed_counts_not():
    dropped = partition(records_without_key=100, warnings=["a warning of this partition"])
    stayed = partition("b-0", status="skipped", reason_code="keyless-records", reason="no", records_without_key=7)
    page = Page(render_html(document(dropped, stayed)))
    assert "100 without a key" in page.text
    assert "a warning of this partition" in page.text


def test_segments_are_a_strip_before_and_one_after_on_the_same_scale():
    before = [[0, 600, "clean"], [50, 300, "dirty"], [90, 100, "active"]]
    after = [[0, 400, "rewritten"], [90, 100, "active"]]
    page = make_page(document(partition(strip_before=before, strip_after=after)))
    (first, words, pieces), (second, _, left) = page.rows[0].strips
    assert (first, second, words) == ("before", "after", "1 clean, 1 dirty, 1 active")
    assert [piece.state for piece in pieces] == ["clean", "dirty", "active"]
    assert [piece.width for piece in pieces] == [600, 300, 100]
    assert sum(piece.width for piece in left) == STRIP_UNITS / 2
    parsed = Page(render_html(document(partition(strip_before=before, strip_after=after))))
    assert len(parsed.with_class("f-rewritten")) == 2  # one in the legend
    assert "segment 50: dirty, 300 B" in parsed.text


def test_a_strip_of_many_segments_merges_neighbours_of_one_state_and_keeps_the_width():
    strip = [[n, 10, "clean" if n < 900 else "dirty"] for n in range(1000)]
    page = make_page(document(partition(strip_before=strip)))
    ((_, words, pieces),) = page.rows[0].strips
    assert words == "900 clean, 100 dirty"
    assert len(pieces) <= 201
    assert sum(piece.width for piece in pieces) == pytest.approx(STRIP_UNITS)
    assert sum(piece.width for piece in pieces if piece.state == "dirty") == pytest.approx(STRIP_UNITS / 10)


def test_reasons_are_grouped_with_failures_first_and_include_partitions_that_changed():
    skipped = [
        partition(f"s-{n}", status="skipped", reason_code="dirty-ratio", reason="not dirty enough") for n in range(3)
    ]
    failed = partition("f-0", status="failed", reason_code="corrupt-batch", reason="the batch fails its CRC")
    kept = partition("k-0", reason_code="tombstones-kept", reason="delete.retention.ms is not stated")
    page = make_page(document(*skipped, kept, failed))
    assert [(reason.code, reason.count) for reason in page.reasons] == [
        ("corrupt-batch", 1),
        ("dirty-ratio", 3),
        ("tombstones-kept", 1),
    ]
    assert page.rows[0].partition == "f-0"
    text = Page(render_html(document(*skipped, kept, failed))).text
    assert " Reasons " in text and "not done" not in text
    assert "not dirty enough" in text
    assert "s-0, s-1, s-2" in text


HOSTILE = '<script>alert("x")</script>\'"&--><img src=x onerror=y>-0'


def test_whatever_a_disk_or_a_user_says_is_escaped():
    bad = partition(
        HOSTILE,
        log_dir=HOSTILE,
        status="failed",
        reason_code=HOSTILE,
        reason=HOSTILE,
        strategy=HOSTILE,
        repairs=[HOSTILE],
        strip_before=[[0, 10, HOSTILE]],
    )
    source = render_html(document(bad, run_id=HOSTILE, error=HOSTILE), options=[("--set", HOSTILE)])
    page = Page(source)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert 'alert("x")' in page.text


def test_the_page_loads_nothing_from_anywhere():
    source = render_html(document(partition(strip_before=[[0, 10, "clean"]])))
    page = Page(source)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in page.tags)
    assert "url(" not in source
    assert "@import" not in source
    assert "://" not in source


def test_a_dry_run_says_so():
    page = Page(render_html(document(partition(), dry_run=True)))
    assert "nothing was changed" in page.text
    assert "75% would be saved" in page.text
    assert "1 would be compacted" in page.text
    assert [each["data-label"] for each in page.with_class("status")] == ["would be"]


def test_partitions_that_a_stopped_run_did_not_finish_are_counted_and_not_said_to_have_failed():
    late = {"status": "failed", "reason_code": "stopped", "reason": "the run was stopped before this partition"}
    rows = [partition("t-0"), *(partition(f"t-{number}", **late) for number in range(1, 4))]
    text = Page(render_html(document(*rows))).text
    assert "3 of 4 partitions are not done. Run the same command again to finish them." in text
    assert "3 stopped" in text and "failed" not in text


def test_a_recovery_without_repairs_changed_nothing():
    fine = {"partition": "t-0", "status": "recovered", "repairs": []}
    assert "1 unchanged" in Page(render_html(document(fine, command="recover"))).text


def test_a_run_that_ended_without_a_result_says_why():
    page = Page(render_html({"command": "compact", "now_ms": NOW_MS, "error": "another process holds the directory"}))
    assert "another process holds the directory" in page.text


def test_a_run_without_partitions_is_a_page_too():
    assert not Page(render_html(document())).with_class("rows")


def test_reports_of_other_commands_show_what_they_have():
    recovered = {
        "partition": "t-0",
        "log_dir": "/logs",
        "status": "recovered",
        "log_end_offset": 1234,
        "segments": [{"base_offset": 0, "bytes": 1500}, {"base_offset": 9, "bytes": 500}],
        "repairs": ["rebuilt an index"],
    }
    text = Page(render_html(document(recovered, command="recover"))).text
    assert "rebuilt an index" in text
    assert "2.0 kB" in text
    assert "log end offset 1,234" in text
    expired = partition(status="expired", deleted_segments=[{"base_offset": 5, "bytes": 10, "rule": "retention.ms"}])
    assert "segment 5 (10 B) expires by retention.ms" in Page(render_html(document(expired, command="expire"))).text
    planned = partition(status="blocked", unblocks_at_ms=NOW_MS, retention={"bytes": 1000, "next_at_ms": NOW_MS})
    text = Page(render_html(document(planned, command="plan"))).text
    assert "retention: bytes 1.0 kB" in text
    assert "unblocks at ms 2023-11-14 22:13:20 UTC" in text


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_figures_on_top_are_those_of_the_command(dry_run):
    def tiles(*partitions, **fields):
        shown = make_page(document(*partitions, dry_run=dry_run, **fields)).tiles
        return [tile for tile in shown if tile[0] not in ("partitions", "bytes")]

    log = {"partition": "t-0", "log_dir": "/logs", "status": "done", "bytes_before": 9, "bytes_after": 5}
    refreshed = {**log, "messages_read": 7000}
    assert tiles(refreshed, refreshed, command="snapshot", rows_inserted=1200, rows_updated=3, rows_deleted=0) == [
        ("records read", "14,000", ""),
        ("rows inserted", "1,200", "in the table"),
        ("rows updated", "3", "in the table"),
    ]
    erased = {**log, "records_scanned": 50, "records_matched": 1100, "records_erased": 1000}
    unread = {**log, "records_scanned": None, "records_matched": 0, "records_erased": 0}
    name = "records to erase" if dry_run else "records erased"
    assert tiles(erased, unread, command="erase") == [(name, "1,000", "1,100 matched")]
    expired = {**log, "deleted_segments": [{"base_offset": 5, "bytes": 10, "rule": "retention.ms"}]}
    segments = ("segments", "1", "would be deleted" if dry_run else "deleted")
    assert tiles({**expired, "messages_archived": None}, command="expire") == [segments]
    assert tiles({**expired, "messages_archived": 1234}, command="expire") == [
        segments,
        ("records archived", "1,234", "of the deleted segments"),
    ]
    assert tiles(partition(), command="compact") == [("records", "5,000 → 1,200", "3,800 superseded or expired")]


def test_settings_in_force_name_their_origin_and_topics_that_have_the_same_stand_together():
    settings = Settings.load(None, ["a:cleanup.policy=compact", "b:cleanup.policy=compact", "retention.ms=5000"])
    page = make_page(document(partition("a-0"), partition("b-0"), partition("c-0")), settings={"": settings})
    by_topics = {group.topics: {key: (text, origin) for key, text, origin in group.values} for group in page.settings}
    assert set(by_topics) == {("a", "b"), ("c",)}
    assert by_topics[("a", "b")]["cleanup.policy"] == ("compact", "--set")
    assert by_topics[("c",)]["cleanup.policy"] == ("", "not stated")
    assert by_topics[("c",)]["retention.ms"] == ("5000", "--set")


def test_two_thousand_partitions_make_a_page_of_a_bearable_size():
    strip = [[n, 10, "dirty"] for n in range(300)]
    many = [partition(f"t-{n}", strip_before=strip, strip_after=strip) for n in range(2000)]
    assert len(render_html(document(*many))) < 20_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0001, "<1 ms"), (0.25, "250 ms"), (61, "61.0 s"), (600, "10 min 0 s"), (36_000, "10 h 0 min")],
)
def test_durations_are_shown_in_a_suitable_unit(seconds, text):
    assert duration(seconds) == text


def test_a_blocked_partition_is_not_green_and_a_refused_one_is_red():
    statuses = ("blocked", "skipped", "unchanged", "kept", "refused", "wrong", "compacted", "cleanable")
    page = make_page(document(*(partition(f"{status}-0", status=status) for status in statuses)))
    tones = {status: tone for status, tone, _ in page.counts}
    assert tones == dict.fromkeys(statuses[:4], "neutral") | dict.fromkeys(statuses[4:6], "bad") | dict.fromkeys(
        statuses[6:], "good"
    )
    assert [tone for _, tone, _ in page.counts] == ["bad"] * 2 + ["good"] * 2 + ["neutral"] * 4


def test_partitions_are_sorted_by_bytes_with_failures_first():
    some = [partition(f"t-{number}", bytes_before=size) for number, size in ((2, 10), (10, 10), (1, 500))]
    page = make_page(document(*some, partition("f-0", status="failed", bytes_before=1)))
    assert [row.partition for row in page.rows] == ["f-0", "t-1", "t-2", "t-10"]


def test_of_very_many_partitions_the_failed_and_the_largest_have_a_row():
    strip = [[0, 600, "clean"], [50, 300, "active"]]
    many = [partition(f"t-{number}", bytes_before=1000 + number, strip_before=strip) for number in range(20_000)]
    failed = partition("f-0", status="failed", reason_code="unreadable", bytes_before=1)
    page = make_page(document(*many, failed))
    assert [row.partition for row in page.rows[:2]] == ["f-0", "t-19999"]
    assert (len(page.rows), page.rows_left_out) == (SHOWN_ROWS, 20_001 - SHOWN_ROWS)
    text = render_html(document(*many, failed))
    assert "18,001 more have no row here." in text
    assert len(text) < 10_000_000


def test_many_empty_partitions_are_one_line_but_a_failed_one_has_its_row():
    nothing = {"bytes_before": 0, "bytes_after": 0}
    empty = [partition(f"e-{number}", status="skipped", reason_code="nothing-dirty", **nothing) for number in range(50)]
    failed = partition("f-0", status="failed", reason_code="unreadable", **nothing)
    few = [partition(f"few-{number}", **nothing) for number in range(3)]
    page = make_page(document(partition(), *empty, failed, *few))
    assert [row.partition for row in page.rows] == ["f-0", "orders-0", "few-0", "few-1", "few-2"]
    (group,) = page.empty
    assert (group.count, group.names) == (50, ("e-0 to e-49",))
    text = Page(render_html(document(*empty))).text
    assert "50 without a row" in text
    assert "e-0 to e-49" in text


def test_names_of_consecutive_partitions_are_ranges():
    names = ["a-2", "a-10", "a-1", "a-0", "a-3", "b-4", "c", "a-11"]
    assert name_ranges(names) == ("a-0 to a-3", "a-10", "a-11", "b-4", "c")


def test_stages_of_the_driver_add_up_to_the_time_of_the_run():
    timed = partition(seconds_by_stage={"view": 3.0, "clean": 5.0, "commit": 0.5})
    stages = {"list": 0.25, "spark": 1.0, "view": 3.0, "clean": 5.0, "commit": 0.5}
    page = make_page(document(timed, seconds=4.0, seconds_by_stage=stages))
    assert [(bar.label, bar.text) for bar in page.stages] == [
        ("list", "250 ms"),
        ("spark", "1.0 s"),
        ("commit", "500 ms"),
        ("other", "2.2 s"),
    ]
    assert [bar.label for bar in page.task_stages] == ["view", "clean"]
    assert page.seconds == "4.0 s"


def test_the_page_of_verify_has_its_directories_and_a_line_for_each_check():
    pair = {"log_dir": None, "status": "correct", "before": "/before/a-0", "after": "/logs/a-0"}
    right = partition("a-0", **pair, checks=dict.fromkeys(CHECKS, 0))
    wrong = partition("b-0", **{**pair, "status": "wrong"}, checks=dict.fromkeys(CHECKS, None) | {"crc": 2})
    page = make_page(document(right, wrong, command="verify"))
    assert page.directories == (("before", "/before"), ("after", "/logs"))
    assert [check.name for check in page.checks] == list(CHECKS)
    found = {check.name: (check.passed, check.failed, check.not_made) for check in page.checks}
    assert (found["crc"], found["lost"]) == ((1, ("b-0",), 0), (1, (), 1))
    assert CHECKS["crc"] in Page(render_html(document(right, wrong, command="verify"))).text
    assert not make_page(document(partition(), command="verify")).checks


def test_the_page_has_the_command_line_for_a_shell_and_the_versions():
    options = [("--set", "retention.ms=5"), ("--dry-run", "")]
    source = render_html(document(partition()), options=options, log_dirs=["/mnt/kafka logs"])
    text = Page(source).text
    assert "sediment compact '/mnt/kafka logs' --set retention.ms=5 --dry-run" in text
    assert f"Sediment {__version__} · Python {platform.python_version()}" in text
    assert f"host {platform.node()}" in text


def test_reasons_can_be_read_without_a_click():
    skipped = partition("s-0", status="skipped", reason_code="dirty-ratio", reason="not dirty enough")
    source = render_html(document(skipped))
    assert re.sub(r"<details.*?</details>", "", source, flags=re.DOTALL).count("not dirty enough") == 2


def test_bytes_that_a_run_adds_are_more_and_both_bars_are_drawn():
    source = render_html(document(partition(bytes_before=200, bytes_after=300), command="restore"))
    page = make_page(document(partition(bytes_before=200, bytes_after=300), command="restore"))
    assert [tile[2] for tile in page.tiles if tile[0] == "bytes"] == ["50% more"]
    assert page.rows[0].saved_text == "50% more"
    assert (page.sizes[0].inner, round(page.sizes[0].width)) == (100, 67)
    assert (page.rows[0].size_bar.inner, round(page.rows[0].size_bar.width)) == (100, 67)
    assert source.count('x="66.67" width="33.33"') == 2


def test_the_sum_of_bytes_leaves_out_partitions_that_the_run_left_alone_as_the_screen_does():
    compacted = partition("t-0", bytes_before=1000, bytes_after=100)
    skipped = partition("t-1", status="skipped", bytes_before=5000, bytes_after=5000)
    page = make_page(document(compacted, skipped))
    assert [tile[1] for tile in page.tiles if tile[0] == "bytes"] == ["1.0\u00a0kB → 100\u00a0B"]


def test_no_name_reorders_or_hides_the_text_of_a_page():
    hostile = "/logs/\u202egnp.exe\x9b\x1b[8m\u2028\udcff"
    document = {"command": "plan", "now_ms": NOW_MS, "partitions": [partition(log_dir=hostile)]}
    page = render_html(document, log_dirs=[hostile])
    assert r"/logs/\u202egnp.exe\x9b\x1b[8m\u2028\udcff" in page
    assert not set("\u202e\x9b\x1b\u2028\udcff") & set(page)
