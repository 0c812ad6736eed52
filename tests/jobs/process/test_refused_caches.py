"""What a command says about a cache that others can change."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from sediment.jobs.process import stderr_log
from sediment.segment_io import safe_paths
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from sediment.segment_io.safe_paths import UnsafePathError, refuse_cache
from tests.jobs.log_dirs import sediment_process
from tests.segments import batch_bytes, write_segment


def test_a_command_goes_on_without_the_cache_and_says_so_once(tmp_path: Path):
    write_segment(tmp_path / "logs" / "a-0", 0, [batch_bytes(0, "aab")])
    opened, temporary = tmp_path / "cache", tmp_path / "tmp"
    for folder, mode in ((opened, 0o777), (temporary, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    environment = {"XDG_CACHE_HOME": str(opened), "TMPDIR": str(temporary), CACHE_VARIABLE: ""}
    arguments = ("dump", tmp_path / "logs" / "a-0", "--what", "records", "--keys", "--json")
    done = sediment_process(*arguments, environment=environment)
    assert (done.status, len(done.stdout.splitlines())) == (0, 3)
    assert done.stderr == (
        "the cache of compiled code is not used, because others can change it: every user can change "
        f"{opened} (mode 777); name a folder that only you can change in XDG_CACHE_HOME\n"
    )
    assert list(opened.iterdir()) == [] and list(temporary.glob("sediment-*/kernels-*")) != []
    assert sediment_process(*arguments, "--quiet", environment=environment).stderr == ""


def test_a_warning_that_came_before_the_log_is_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(safe_paths, "_said", set())
    with monkeypatch.context() as early:
        early.setattr(logging.Logger, "hasHandlers", lambda _: False)
        refuse_cache(UnsafePathError("every user can change /cache (mode 777)"))
    assert capsys.readouterr().err == ""
    with stderr_log.log_to_stderr(stderr_log.JSON, quiet=False):
        pass
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"][:37]) == ("WARNING", "the cache of compiled code is not use")
