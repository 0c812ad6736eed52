"""Style of the prose in `sediment/`, as far as `tests.prose` can check it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import breaches

PACKAGE = Path(__file__).resolve().parents[2] / "sediment"
FOLDERS = sorted({str(file.parent.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_prose_of_a_folder_follows_the_style_rules(folder: str) -> None:
    found = [str(breach) for file in sorted((PACKAGE / folder).glob("*.py")) for breach in breaches(file)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""What a module holds."""', "1: docstring begins with 'What'"),
        ('class A:\n    """Whether it is so."""', "1: docstring begins with 'Whether'"),
        (
            'def f():\n    """The size in bytes."""',
            "1: docstring of a function begins with 'The', which is not an imperative",
        ),
        ('"""Error texts."""\nTEXT = "this is no segment"', "2: has the word 'is no'"),
        ("# Nobody reads this.\nx = 1", "1: has the word 'Nobody'"),
        (f'"""Long{" word" * 30}."""', f"1: has a sentence of 31 words: Long{' word' * 11} …"),
    ],
    ids=["module", "class", "function", "string", "comment", "long sentence"],
)
def test_a_breach_is_reported_with_its_line(source: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(source, encoding="utf-8")
    assert [str(breach) for breach in breaches(file)] == [f"{file}:{expected}"]


@pytest.mark.parametrize(
    "source",
    [
        '"""Segments of a partition."""',
        'def f():\n    """Return the size in bytes."""',
        'class A:\n    @property\n    def size(self):\n        """The size in bytes."""',
        "# A thread of the write-behind falls behind.\nx = 1",
        '"""Table of sizes.\n\nRows:\n\n    a row' + " word" * 40 + '\n"""',
    ],
    ids=["noun phrase", "imperative", "property", "allowed word", "table"],
)
def test_plain_prose_has_no_breach(source: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(source, encoding="utf-8")
    assert list(breaches(file)) == []
