"""The cache of compiled loops."""

from __future__ import annotations

import ast
from pathlib import Path

from sediment.segment_io.jit import kernel_files


def _imported_constants(source: Path) -> list[str]:
    """Modules from which a file takes names in capitals."""
    return [
        str(node.module)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("sediment.")
        and any(alias.name.isupper() for alias in node.names)
    ]


def test_every_constant_that_a_kernel_can_use_is_in_the_digest_of_the_cache():
    files = kernel_files()
    known = {source.stem for source in files}
    assert {"decode", "emit", "format", "memory", "sweep", "record_filter", "offset_map"} <= known
    # `reader` has sizes of buffers, which no kernel sees.
    taken = {module.rpartition(".")[2] for source in files for module in _imported_constants(source)}
    assert taken - {"reader"} <= known
