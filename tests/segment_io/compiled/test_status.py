"""The status numbers of kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sediment.segment_io.compiled import status
from sediment.segment_io.compiled.kernel_folder import kernel_files


def test_every_status_has_a_number_of_its_own():
    numbers = {name: value for name, value in vars(status).items() if name.isupper()}
    assert len(set(numbers.values())) == len(numbers) > 40


def _constants_returned(tree: ast.Module) -> Iterator[str]:
    """Names in capitals that a kernel returns, alone, by choice or as the first of several values."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    kernels = (node for node in functions if any(ast.unparse(mark) == "kernel" for mark in node.decorator_list))
    for node in (node for function in kernels for node in ast.walk(function)):
        if isinstance(node, ast.Return) and node.value is not None:
            first = node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            yield from (choice.id for choice in choices if isinstance(choice, ast.Name) and choice.id.isupper())


def _own_constants(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }


def _statuses_defined_in(source: Path) -> set[str]:
    """Non-negative numbers that a file defines and its kernels return; a negative one is a size or offset not known."""
    tree = ast.parse(source.read_text("utf-8"))
    own = _own_constants(tree)
    return {name for name in _constants_returned(tree) if not own.get(name, "-").startswith("-")}


def test_no_file_of_kernels_defines_a_status_of_its_own():
    assert {source.name: found for source in kernel_files() if (found := _statuses_defined_in(source))} == {}


def test_the_numbers_are_in_the_digest_of_the_kernel_cache():
    assert Path(status.__file__).resolve() in [source.resolve() for source in kernel_files()]
