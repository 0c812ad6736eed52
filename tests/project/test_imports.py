"""The modules of `sediment` have no import cycles, not even in lazy imports or in imports for type checking."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2] / "sediment"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(path: Path) -> Iterator[str]:
    """Yield the names of every import statement, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                yield node.module


def imports_of(name: str, known: dict[str, Path]) -> set[str]:
    names = list(imported_names(known[name]))
    # `from package import module` is an import of the module; the package itself holds nothing.
    packages = {found.rpartition(".")[0] for found in names if found in known}
    return {found for found in names if found in known and found not in packages} - {name}


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    assert len(known) > 100
    try:
        TopologicalSorter({name: imports_of(name, known) for name in known}).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_a_lazy_import_and_one_for_types_count(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from sediment.jobs.cli import main\n"
        "def lazy():\n    from sediment.jobs import plan\n"
    )
    found = imports_of("source", {**modules(), "source": source})
    assert found == {"sediment.jobs.cli", "sediment.jobs.plan"}
