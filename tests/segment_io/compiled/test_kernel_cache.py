"""The cache of compiled loops."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sediment.segment_io.compiled import kernel_folder
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE, kernel_files
from tests.other_users import ATTACKER, VICTIM, give, only_root, run_as


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
    # No kernel sees the buffer sizes of `reader`, `padding` and `huge_pages`, the limits of `batch_payloads`, the
    # names in `native`, the advice in `errors`, or the constants in `units`.
    taken = {module.rpartition(".")[2] for source in files for module in _imported_constants(source)}
    unseen = {"reader", "padding", "huge_pages", "batch_payloads", "native", "errors", "units"}
    assert taken - unseen <= known


_PROGRAM = """
import sys
from numba import types
from sediment.segment_io.format import checksum

checksum.crc32c.compile((types.int64, types.int64))
stats = checksum.crc32c.stats
print(checksum.__file__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def _environment(root: Path, **more: str) -> dict[str, str]:
    home = {"HOME": str(root / "home"), "TMPDIR": str(root), "PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    return home | more


def _compile(root: Path, **environment: str) -> list[str]:
    return _run(root, **environment).stdout.split()


def _run(root: Path, *, umask: int = 0o022, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM]
    return subprocess.run(
        command,
        env=_environment(root, **environment),
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        umask=umask,
    )


def test_a_cache_beside_the_sources_is_found_wherever_they_are_moved(tmp_path):
    package = Path(kernel_folder.__file__).parents[2]
    ignored = shutil.ignore_patterns("__pycache__", "jobs", "engine")
    shutil.copytree(package, tmp_path / "made" / "sediment", ignore=ignored)
    file, hits, misses = _compile(tmp_path / "made", SEDIMENT_KERNEL_CACHE="in-tree")
    assert file.startswith(str(tmp_path)), "the copy has to come before the installed package"
    assert (int(hits), int(misses)) == (0, 1)
    shutil.move(tmp_path / "made", tmp_path / "moved")
    file, hits, misses = _compile(tmp_path / "moved")
    assert file.startswith(str(tmp_path / "moved"))
    assert (int(hits), int(misses)) == (1, 0)


def test_equal_sources_give_equal_files_wherever_they_are(tmp_path):
    package = Path(kernel_folder.__file__).parents[2]
    ignored = shutil.ignore_patterns("__pycache__", "jobs", "engine")
    shutil.copytree(package, tmp_path / "one" / "sediment", ignore=ignored)
    shutil.copytree(tmp_path / "one", tmp_path / "another")  # the sources of the package may change meanwhile
    made = []
    for name in ("one", "another"):
        _compile(tmp_path / name, SEDIMENT_KERNEL_CACHE="in-tree", PYTHONHASHSEED="0")
        found = sorted((tmp_path / name).rglob("*.nb[ic]"))
        made.append({str(file.relative_to(tmp_path / name)): file.read_bytes() for file in found})
    assert len(made[0]) >= 2
    assert made[0] == made[1]


def test_a_cache_beside_other_sources_is_not_used(tmp_path):
    package = Path(kernel_folder.__file__).parents[2]
    shutil.copytree(package, tmp_path / "sediment", ignore=shutil.ignore_patterns("__pycache__", "jobs", "engine"))
    _compile(tmp_path, SEDIMENT_KERNEL_CACHE="in-tree")
    source = tmp_path / "sediment" / "segment_io" / "format" / "layout.py"
    source.write_text(source.read_text() + "# changed\n")
    _, hits, misses = _compile(tmp_path)
    assert (int(hits), int(misses)) == (0, 1)


# ------------------------------------------------------------------------------------------------ caches of other users
class _Bomb:
    """An object whose pickle runs a program that makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.file}",)


def _bombs(cache: Path, file: Path) -> None:
    """Replace each index of a cache by a pickle that makes `file`."""
    indexes = list(cache.rglob("*.nbi"))
    assert indexes
    for index in indexes:
        index.write_bytes(pickle.dumps(_Bomb(file)))


def _victims_run(shared: Path, **environment: str) -> list[str]:
    repository = str(Path(kernel_folder.__file__).parents[3])
    program = [sys.executable, "-c", _PROGRAM]
    given = {"HOME": "/nonexistent", "TMPDIR": str(shared), "PATH": os.environ["PATH"], "PYTHONPATH": repository}
    done = run_as(VICTIM, program, environment=given | environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()[1:]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


PLACES = {"": 0o777, f"sediment-{VICTIM}": 0o755, ".cache/sediment": 0o755, "named": 0o777}


@only_root
def test_code_that_another_user_has_put_where_a_cache_is_looked_for_is_not_run(shared: Path):
    _run(shared, SEDIMENT_KERNEL_CACHE=str(shared / "made"))
    (made,) = (shared / "made").iterdir()
    for place, mode in PLACES.items():
        shutil.copytree(made, shared / place / made.name)
        _bombs(shared / place / made.name, shared / "executed")
        top = shared / Path(place or made.name).parts[0]
        give(top, ATTACKER)
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            folder.chmod(mode)
    for environment in ({}, {"HOME": str(shared)}, {CACHE_VARIABLE: str(shared / "named")}):
        assert _victims_run(shared, **environment) == ["0", "1"]
    assert not (shared / "executed").exists()
    shutil.rmtree(shared / f"sediment-{VICTIM}")
    assert [_victims_run(shared) for _ in range(2)] == [["0", "1"], ["1", "0"]]
    own = shared / f"sediment-{VICTIM}"
    assert (own.stat().st_uid, stat.S_IMODE(own.stat().st_mode)) == (VICTIM, 0o700)


@only_root
def test_a_cache_that_root_has_made_serves_users_who_cannot_write_it(shared: Path, tmp_path: Path):
    named = tmp_path / "image"
    _run(tmp_path, umask=0, SEDIMENT_KERNEL_CACHE=str(named))
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in (named, *named.rglob("*"))}
    assert modes == {True: 0o755, False: 0o644}
    assert _victims_run(shared, SEDIMENT_KERNEL_CACHE=str(named)) == ["1", "0"]
    for file in named.rglob("*.nb?"):
        file.unlink()
    assert _victims_run(shared, SEDIMENT_KERNEL_CACHE=str(named)) == ["0", "1"]
    assert list(shared.iterdir()) == [], "a folder that is named is the only one"


def test_a_cache_that_was_open_to_all_users_is_not_used_although_it_is_ours(tmp_path: Path):
    cache = tmp_path / "home" / ".cache" / "sediment"
    assert _compile(tmp_path)[1:] == ["0", "1"]
    assert _compile(tmp_path)[1:] == ["1", "0"]
    _bombs(cache, tmp_path / "executed")
    for opened in (cache, next(cache.iterdir()), next(cache.glob("*/*"))):
        opened.chmod(0o777)
        done = _run(tmp_path)
        assert done.stderr == "", "a process without a log says nothing"
        opened.chmod(0o755)
    next(cache.rglob("*.nbi")).chmod(0o666)
    _run(tmp_path)
    assert not (tmp_path / "executed").exists()
    assert list((tmp_path / f"sediment-{os.geteuid()}").iterdir()), "the folder in the temporary directory is used"


def test_a_cache_made_without_a_umask_is_private_and_is_used_again(tmp_path: Path):
    hits = [_run(tmp_path, umask=0).stdout.split()[1] for _ in range(2)]
    assert hits == ["0", "1"]
    for place in (tmp_path / "home" / ".cache").rglob("*"):
        assert not place.stat().st_mode & 0o022, place


def test_a_process_that_compiles_nothing_does_not_load_what_a_compilation_needs(tmp_path: Path):
    program = [sys.executable, "-c", f"{_PROGRAM}\nprint('numba.np.arraymath' in sys.modules)"]
    loaded = [
        subprocess.run(program, env=_environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [each.stdout.split()[1:] for each in loaded] == [["0", "1", "True"], ["1", "0", "False"]]


def test_the_log_announces_only_the_first_compilation_on_a_machine(tmp_path: Path):
    program = [sys.executable, "-c", f"import logging; logging.basicConfig()\n{_PROGRAM}"]
    environment = _environment(tmp_path)
    told = [
        subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        for _ in range(2)
    ]
    assert "compiling the inner loops, " in told[0] and len(told[0].splitlines()) == 1
    assert told[1] == ""
    program[2] = (
        "import logging; logging.basicConfig(); from sediment.segment_io.compiled.kernel_folder import "
        "warn_if_uncompiled; warn_if_uncompiled('checksum.'); warn_if_uncompiled('sweep.'); warn_if_uncompiled()"
    )
    other = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert other == told[0]


def test_a_torn_file_of_the_cache_costs_a_compilation_and_no_error(tmp_path: Path):
    _run(tmp_path)
    for ending in ("nbi", "nbc"):
        (torn,) = (tmp_path / "home").rglob(f"checksum.crc32c-*.{ending}")
        os.truncate(torn, torn.stat().st_size // 2)
        assert [_compile(tmp_path)[1:] for _ in range(2)] == [["0", "1"], ["1", "0"]]


def test_without_any_safe_folder_each_process_compiles_and_writes_nothing(tmp_path: Path):
    (tmp_path / "home").mkdir()
    tmp_path.chmod(0o777)
    done = [_run(tmp_path).stdout.split()[1:] for _ in range(2)]
    assert done == [["0", "1"], ["0", "1"]]
    assert [path.name for path in tmp_path.rglob("*")] == ["home"], "numba looks for no folder of its own"


def test_a_cache_beside_the_sources_that_others_can_change_is_not_used(tmp_path: Path):
    package = Path(kernel_folder.__file__).parents[2]
    shutil.copytree(package, tmp_path / "sediment", ignore=shutil.ignore_patterns("__pycache__", "jobs", "engine"))
    _compile(tmp_path, SEDIMENT_KERNEL_CACHE="in-tree")
    assert _compile(tmp_path)[1:] == ["1", "0"]
    _bombs(tmp_path / "sediment", tmp_path / "executed")
    (tmp_path / "sediment" / "segment_io" / "format" / "__pycache__").chmod(0o777)
    assert _compile(tmp_path)[1:] == ["0", "1"]
    assert not (tmp_path / "executed").exists()
