"""The cache of compiled loops."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

from sediment.segment_io.compiled import jit
from sediment.segment_io.compiled.jit import kernel_files


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
    expected = {"record_decoder", "batch_rebuild", "layout", "jit", "memory", "sweep", "record_retention", "offset_map"}
    assert expected <= known
    # No kernel sees the buffer sizes of `reader`, `padding` and `huge_pages`, the levels of `batch_codecs`,
    # the names in `native`, or the constants in `units`.
    taken = {module.rpartition(".")[2] for source in files for module in _imported_constants(source)}
    assert taken - {"reader", "padding", "huge_pages", "batch_codecs", "native", "units"} <= known


_PROGRAM = """
import sys
from numba import types
from sediment.segment_io.format import checksum

checksum.crc32c.compile((types.int64, types.int64))
stats = checksum.crc32c.stats
print(checksum.__file__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def _compile(root: Path, **environment: str) -> list[str]:
    home = {"HOME": str(root / "home"), "TMPDIR": str(root), "PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, env=home | environment, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_cache_beside_the_sources_is_found_wherever_they_are_moved(tmp_path):
    package = Path(jit.__file__).parents[2]
    ignored = shutil.ignore_patterns("__pycache__", "jobs", "engine")
    shutil.copytree(package, tmp_path / "made" / "sediment", ignore=ignored)
    file, hits, misses = _compile(tmp_path / "made", SEDIMENT_KERNEL_CACHE="in-tree")
    assert file.startswith(str(tmp_path)), "the copy has to come before the installed package"
    assert (int(hits), int(misses)) == (0, 1)
    shutil.move(tmp_path / "made", tmp_path / "moved")
    file, hits, misses = _compile(tmp_path / "moved")
    assert file.startswith(str(tmp_path / "moved"))
    assert (int(hits), int(misses)) == (1, 0)


def test_a_cache_beside_other_sources_is_not_used(tmp_path):
    package = Path(jit.__file__).parents[2]
    shutil.copytree(package, tmp_path / "sediment", ignore=shutil.ignore_patterns("__pycache__", "jobs", "engine"))
    _compile(tmp_path, SEDIMENT_KERNEL_CACHE="in-tree")
    source = tmp_path / "sediment" / "segment_io" / "format" / "layout.py"
    source.write_text(source.read_text() + "# changed\n")
    _, hits, misses = _compile(tmp_path)
    assert (int(hits), int(misses)) == (0, 1)
