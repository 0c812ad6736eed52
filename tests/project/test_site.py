"""The documentation site: every page is in its navigation, and GitHub's Markdown becomes that of the site.

`make docs` builds it, which fails at every broken link and at every cell of a notebook that fails.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import sediment
from conf.docs.github_markdown import for_site
from conf.docs.outside_files import PAGES, as_page, linked_files, relinked, site_name
from conf.docs.reference_pages import API, COLUMNS, OPTIONS, api_page, columns_page, options_page
from sediment.jobs import setup
from sediment.jobs.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
SETTINGS = (ROOT / "mkdocs.yml").read_text()
GENERATED = {OPTIONS, COLUMNS, API, *PAGES.values()}


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"[\w./-]+\.md\b", SETTINGS.partition("\nnav:\n")[2])
    written = [*DOCS.rglob("*.md"), *NOTEBOOKS]
    assert sorted(listed) == sorted({site_name(str(page.relative_to(ROOT))) for page in written} | GENERATED)


def test_the_site_loads_nothing_from_the_network() -> None:
    assert "font: false" in SETTINGS and "offline" in SETTINGS
    for asset in (ROOT / "conf" / "docs" / "theme").rglob("*.*"):
        assert "//" not in re.sub(r"/\*.*?\*/", "", asset.read_text(), flags=re.DOTALL), asset


def test_every_command_option_and_public_name_has_its_reference() -> None:
    options = options_page()
    wanted = [*sorted(COMMANDS.keys() - {"setup"}), *(f"setup {name}" for name in setup.COMMANDS)]
    assert [line.removeprefix("## ") for line in options.splitlines() if line.startswith("## ")] == wanted
    assert "| `--keep-before DIR` |" in options
    assert "| `leaderEpoch` | int |" in columns_page()
    documented = set(re.findall(r"^::: sediment\.(\w+)$", api_page(), re.MULTILINE))
    assert documented == set(sediment.__all__) - {"__version__", "records"}


# ------------------------------------------------------------------------------------------------------------- Markdown
@pytest.mark.parametrize(
    ("github", "site"),
    [
        ("* a\n  * b\n    c\n* d", "* a\n    * b\n        c\n* d"),
        ("1. a\n\n   ```\n     x\n   ```\n\n   b\n2. c", "1. a\n\n    ```\n      x\n    ```\n\n    b\n2. c"),
        ("text\n* a\nend", "text\n\n* a\nend"),
        ("text\n| a |\n| - |\n| `x\\|y` \\| |", "text\n\n| a |\n| - |\n| `x|y` \\| |"),
        ("* a\n\n  | a |\n  | - |\n\nb", "* a\n\n    | a |\n    | - |\n\nb"),
        ("```\n* a\n  * b\n| `x\\|y` |\n```", "```\n* a\n  * b\n| `x\\|y` |\n```"),
        ("* a\n  ```\n  x\n\n  y\n  ```\n* b", "* a\n    ```\n    x\n\n    y\n    ```\n* b"),
    ],
    ids=[
        "nested",
        "fence-in-an-item",
        "list-after-text",
        "table-after-text",
        "table-in-an-item",
        "fence",
        "tight-fence",
    ],
)
def test_markdown_of_github_becomes_that_of_the_site(github: str, site: str) -> None:
    assert for_site(github) == site


def test_a_page_for_the_site_has_the_same_words() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        assert for_site(text).replace("\\|", "|").split() == text.replace("\\|", "|").split()


# ---------------------------------------------------------------------------------------------------------------- links
def test_links_that_leave_the_folder_lead_to_pages_of_the_site() -> None:
    def relinked_from(path: str, text: str) -> str:
        return relinked(text, path, lambda target: (ROOT / target).is_file())

    assert relinked_from("docs/README.md", "[a](../README.md)") == "[a](overview.md)"
    assert relinked_from("README.md", "[a](docs/operate/undo.md#x)") == "[a](operate/undo.md#x)"
    assert relinked_from("CONTRIBUTING.md", "[a](docs/README.md)") == "[a](../README.md)"
    assert relinked_from("docs/operate/cluster.md", "[a](../../conf/spark-defaults.conf)") == (
        "[a](../files/conf/spark-defaults.conf.md)"
    )
    unchanged = "[a](#b) [c](https://d/e) [f](none.md)\n```\n[a](../README.md)\n```\n"
    assert relinked_from("docs/README.md", unchanged) == unchanged


def test_a_linked_file_outside_of_the_folder_gets_a_page() -> None:
    found = list(linked_files(ROOT, ["docs/operate/cluster.md", "docs/README.md"]))
    assert found == ["conf/spark-defaults.conf"]
    assert as_page("conf/a.py", "x = 1\n") == "# a.py\n\n`conf/a.py` of the repository:\n\n````python\nx = 1\n````\n"


# ------------------------------------------------------------------------------------------------------------ notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_output_and_uses_public_names_only(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert notebook["cells"][0]["source"][0].startswith("# ")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sediment"):
                    assert node.module == "sediment" and {name.name for name in node.names} <= set(sediment.__all__)
                elif isinstance(node, ast.Import):
                    assert not any(name.name.startswith("sediment.") for name in node.names)
