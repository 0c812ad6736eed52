"""Pages of the site for files outside docs/ that pages link to.

Markdown files of the root become pages with the same text.  Any other file gets a page that shows it as code.  A link
to a folder is an error of the build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
"""Pages of the repository's root, and their names in the site."""

_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_FENCED = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2", re.MULTILINE | re.DOTALL)
_LEXERS = {".py": "python", ".properties": "properties", ".conf": "properties", ".sh": "bash"}


def site_name(path: str) -> str:
    """Return the name in the site of the file at `path`, which is relative to the repository."""
    if path.startswith("docs/"):
        name = path.removeprefix("docs/")
        return name.removesuffix(".ipynb") + ".md" if name.endswith(".ipynb") else name
    return PAGES.get(path) or f"files/{path}.md"


def relinked(text: str, path: str, is_file: Callable[[str], bool]) -> str:
    """Return the text of the page at `path` (relative to the repository) with links between pages of the site.

    Links to paths for which `is_file` is false stay as they are, so that the build reports them.
    """
    here = posixpath.dirname(site_name(path))

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if "://" in link[2] or not is_file(target):
            return link[0]
        return link[1] + posixpath.relpath(site_name(target), here or ".") + link[3]

    pieces = []
    end = 0
    for fenced in _FENCED.finditer(text):
        pieces += [_LINK.sub(replaced, text[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*pieces, _LINK.sub(replaced, text[end:])])


def linked_files(root: Path, pages: Iterable[str]) -> Iterator[str]:
    """Yield the files outside docs/ that `pages` link to; all paths are relative to `root`."""
    found = set()
    for page in pages:
        for link in _LINK.finditer(_FENCED.sub("", (root / page).read_text())):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
            if "://" not in link[2] and not target.startswith("docs/") and (root / target).is_file():
                found.add(target)
    yield from sorted(found - PAGES.keys())


def as_page(path: str, content: str) -> str:
    """Return a page that shows the file at `path`."""
    lexer = _LEXERS.get(Path(path).suffix, "text")
    return f"# {Path(path).name}\n\n`{path}` of the repository:\n\n````{lexer}\n{content.rstrip()}\n````\n"
