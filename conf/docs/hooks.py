"""Hooks of mkdocs: pages for files outside docs/, for notebooks and for the code, and GitHub's Markdown.

1. `on_files` adds the generated pages; notebooks are executed here, and a cell that fails ends the build.
2. `on_page_markdown` rewrites links and lists of each page that a person wrote.
3. `on_page_content` puts the output of the notebooks into their pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from conf.docs import github_markdown, notebooks, outside_files, reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_written: dict[str, str] = {}
_outputs = notebooks.Outputs()
_executes = True


def on_startup(*, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
    """Execute notebooks in a build only: `serve` builds again after each change."""
    global _executes
    _executes = command != "serve"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    _written.clear()
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    _written.update({outside_files.site_name(page): page for page in (*pages, *outside_files.PAGES)})
    for page, name in outside_files.PAGES.items():
        _add(files, config, name, (ROOT / page).read_text())
    for path in outside_files.linked_files(ROOT, (*pages, *outside_files.PAGES)):
        _add(files, config, outside_files.site_name(path), outside_files.as_page(path, (ROOT / path).read_text()))
    for notebook in sorted(DOCS.rglob("*.ipynb")):
        name = outside_files.site_name(str(notebook.relative_to(ROOT)))
        _add(files, config, name, notebooks.page_of(notebook, _outputs, executes=_executes))
    _add(files, config, reference_pages.OPTIONS, reference_pages.options_page())
    _add(files, config, reference_pages.COLUMNS, reference_pages.columns_page())
    _add(files, config, reference_pages.API, reference_pages.api_page())
    return files


def _add(files: Files, config: MkDocsConfig, name: str, content: str) -> None:
    files.append(File.generated(config, name, content=content))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page for Python-Markdown, with links inside the site."""
    path = _written.get(page.file.src_uri)
    if path is None:
        return markdown
    return github_markdown.for_site(outside_files.relinked(markdown, path, lambda target: (ROOT / target).is_file()))


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with the outputs of its notebook, if it is one."""
    return _outputs.filled(html)
