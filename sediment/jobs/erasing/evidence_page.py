"""The evidence as a page for people; only the signed document next to it counts as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sediment.jobs.reporting.html_template import render_template
from sediment.segment_io.dates import date_text
from sediment.segment_io.printable import encodable


def render_evidence(document: Mapping[str, Any], file: str) -> str:
    """Return the page of `document`; `file` is the name of the signed evidence."""
    finished = date_text(document["finished_ms"])
    return encodable(render_template("evidence.html", document=document, file=file, finished=finished))
