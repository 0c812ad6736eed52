"""Notebooks as pages of the site: executed by a real kernel, with what each cell returns.

Cells run in a temporary folder.  HTML of an output does not pass through Markdown: the page holds an empty element, and
`Outputs.filled` puts the HTML there.  Text on stderr, such as progress, is left out.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TIMEOUT_SECONDS = 600
"""Longest time for the start of a kernel, and for one cell; the first run of a machine compiles our kernels."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Outputs:
    """HTML of outputs by number, until their pages are rendered."""

    def __init__(self) -> None:
        self._html: list[str] = []

    def placeholder(self, content: str) -> str:
        """Return an element for a page that `filled` fills with `content`."""
        self._html.append(content)
        return f'<div class="cell-output" data-output="{len(self._html) - 1}"></div>'

    def filled(self, page: str) -> str:
        """Return the HTML of a page with its outputs."""
        return re.sub(
            r'(<div class="cell-output") data-output="(\d+)">',
            lambda element: f"{element[1]}>{self._html[int(element[2])]}",
            page,
        )


def page_of(path: Path, outputs: Outputs, *, executes: bool) -> str:
    """Return the page of the notebook at `path`; `executes` runs it first.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    notebook = nbformat.read(path, as_version=4)
    if executes:
        with tempfile.TemporaryDirectory(prefix="sediment-notebook-") as folder:
            NotebookClient(
                notebook,
                kernel_name="python3",
                startup_timeout=TIMEOUT_SECONDS,
                timeout=TIMEOUT_SECONDS,
                resources={"metadata": {"path": folder}},
            ).execute()
    title, *cells = notebook.cells
    text = [title.source, f"[Download this notebook]({path.name}){{ .notebook-download download }}"]
    for cell in cells:
        if cell.cell_type == "markdown":
            text.append(cell.source)
        else:
            text.append(f"```python\n{cell.source}\n```")
            text += [outputs.placeholder(output) for output in _shown(cell.outputs)]
    return "\n\n".join(text) + "\n"


def _shown(outputs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the HTML of each output that a reader should see."""
    for output in outputs:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            yield _preformatted(output["text"])
        elif output["output_type"] in ("execute_result", "display_data"):
            data = output["data"]
            if "text/html" in data:
                yield data["text/html"]
            elif "image/png" in data:
                yield f'<img alt="chart" src="data:image/png;base64,{data["image/png"].strip()}">'
            else:
                yield _preformatted(data["text/plain"])


def _preformatted(text: str) -> str:
    return f"<pre>{html.escape(_ANSI.sub('', text).rstrip())}</pre>"
