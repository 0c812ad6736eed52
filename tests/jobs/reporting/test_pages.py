"""Rules of every page that Sediment writes: one style, readable colours, no width of its own, and a form for print."""

from __future__ import annotations

import re
from functools import partial

import pytest

from sediment.jobs.erasing.evidence import render_evidence
from sediment.jobs.reporting.html_page import render_html
from sediment.jobs.reporting.html_template import stylesheet
from tests.jobs.reporting.test_html_page import NOW_MS, Page, document, partition

NARROW_PX = 390
PX_PER_REM = 15
TEXTS = ("ink", "soft", "link", "good", "bad", "neutral")
MARKS = ("before", "after", "clean", "dirty", "active", "rewritten", "kept", "deleted", "archived", "other")

EVIDENCE = {
    "run_id": "0123abc",
    "finished_ms": NOW_MS,
    "sediment": "1.0",
    "complete": False,
    "incomplete": ["t-0 has replicas that this run did not cover"],
    "partitions": [
        {
            "partition": "t-0",
            "log_dir": "/logs",
            "status": "erased",
            "action": None,
            "scanned": None,
            "matched": 1000,
            "removed": 1,
            "records_after": 5,
            "matches_after": 0,
            "replicas": None,
            "segments": [
                {"rewritten": True, "removed": 1, "before": [], "after": [{"name": "0.log", "sha256": "ab" * 32}]}
            ],
        }
    ],
    "not_reached": [{"kind": "backups", "path": None, "advice": "erase from each copy"}],
    "subjects": {"algorithm": "HMAC-SHA256", "by": "keys", "hmacs": ["cd" * 32]},
}

PAGES = {
    "report": partial(render_html, document(partition("t" * 240 + "-0", strip_before=[[0, 10, "clean"]]))),
    "error": partial(render_html, {"command": "compact", "now_ms": NOW_MS, "error": "no such directory"}),
    "evidence": partial(render_evidence, EVIDENCE, "evidence.json"),
}


@pytest.fixture(params=PAGES)
def source(request) -> str:
    return PAGES[request.param]()


def palette(block: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block))


def palettes() -> dict[str, dict[str, str]]:
    light, dark, printed = (palette(block) for block in re.findall(r":root \{(.*?)\}", stylesheet(), re.DOTALL))
    return {"light": light, "dark": light | dark, "print": light | printed}


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG 2.2, from 1 to 21."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_on_white_is_21():
    assert contrast("#000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("medium", ["light", "dark", "print"])
def test_text_and_marks_differ_enough_from_their_ground(medium):
    colours = palettes()[medium]
    low = [
        (name, ground, ratio)
        for names, least in ((TEXTS, 4.5), (MARKS, 3.0))
        for name in names
        for ground in ("ground", "panel")
        if (ratio := contrast(colours[name], colours[ground])) < least and not (ground == "panel" and name in MARKS)
    ]
    assert low == []


def test_a_link_in_a_cell_has_the_colour_of_its_status():
    assert "td.good a, td.bad a, td.neutral a { color: inherit; }" in stylesheet()


def test_print_has_a_light_ground():
    assert contrast(palettes()["print"]["ground"], "#ffffff") == 1
    assert stylesheet().count("@media screen and (prefers-color-scheme: dark)") == 1
    assert "@media (prefers-color-scheme" not in stylesheet()


def test_a_page_names_its_language_and_title_and_fits_a_phone(source):
    page = Page(source)
    attributes = dict(page.tags)
    assert attributes["html"]["lang"] == "en"
    assert re.search(r"<title>[^<]+</title>", source)
    assert any(each.get("name") == "viewport" and "width=device-width" in each["content"] for _, each in page.tags)
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert "main" in attributes


def test_every_page_has_the_one_stylesheet_with_its_rules_for_print_and_focus(source):
    assert stylesheet() in source
    assert "@media print" in source
    assert ":focus-visible" in source


def test_no_element_is_wider_than_a_phone(source):
    style = re.search(r"<style>(.*)</style>", source, re.DOTALL)[1]
    for value, unit in re.findall(r"(?<![-\w])(?:min-)?width: (\d*\.?\d+)(px|rem)", style):
        assert float(value) * (PX_PER_REM if unit == "rem" else 1) <= NARROW_PX, (value, unit)
    assert "style=" not in source


def test_each_column_of_a_table_has_a_heading_that_a_screen_reader_finds(source):
    heads = [attributes for tag, attributes in Page(source).tags if tag == "th"]
    assert all(attributes.get("scope") == "col" for attributes in heads)
