"""The evidence as a page for people; only the signed document next to it counts as evidence."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from typing import Any

from sediment.jobs.reporting.figures import utc_time
from sediment.segment_io.printable import encodable


def render_evidence(document: Mapping[str, Any], file: str) -> str:
    """Return the page of `document`; `file` is the name of the signed evidence."""
    from jinja2 import Environment, StrictUndefined

    source = (
        importlib.resources.files("sediment.jobs.reporting")
        .joinpath("templates", "evidence.html")
        .read_text(encoding="utf-8")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    finished = utc_time(document["finished_ms"])
    return encodable(environment.from_string(source).render(document=document, file=file, finished=finished))
