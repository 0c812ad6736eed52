"""Rendering of the HTML pages: one template for each page, and one stylesheet (sediment/page.css) for all pages."""

from __future__ import annotations

import importlib.resources
import re
from typing import TYPE_CHECKING

from sediment.segment_io.printable import printable

if TYPE_CHECKING:
    from markupsafe import Markup

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\sUTC")


def render_template(name: str, **values: object) -> str:
    """Return the page of templates/`name`; text in `values` is escaped, and the stylesheet is part of the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    source = importlib.resources.files("sediment.jobs.reporting").joinpath("templates", name).read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken_times"] = _unbroken_times
    page = environment.from_string(source).render(style=Markup(stylesheet()), **values)
    return "\n".join(map(printable, page.split("\n")))  # also no direction mark, which would reorder a name or command


def _unbroken_times(text: str) -> Markup:
    from markupsafe import Markup, escape

    return Markup(_TIME.sub(r'<span class="when">\g<0></span>', str(escape(text))))


def stylesheet() -> str:
    return importlib.resources.files("sediment").joinpath("page.css").read_text("utf-8")
