"""Completion as a real bash asks for it, and the examples in every command's help."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from sediment.jobs import setup
from sediment.jobs.cli import COMMANDS
from sediment.jobs.command_line.examples import EXAMPLES
from tests.jobs.log_dirs import sediment
from tests.waiting import LIMIT_SECONDS

BASH = shutil.which("bash")

COMPLETE = """
eval "$(sediment setup completion bash)"
COMP_WORDS=({words}) COMP_CWORD={current} COMPREPLY=()
{function} sediment
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def bash(tmp_path):
    """Ask bash what may follow the last of some words; `sediment` is this project's command line."""
    program = tmp_path / "bin" / "sediment"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'sediment'\nfrom sediment.jobs.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def complete(*words):
        asked = " ".join(f"'{word}'" for word in ("sediment", *words))
        script = COMPLETE.format(words=asked, current=len(words), function="_sediment_completion")
        done = subprocess.run(
            [BASH, "-c", script], env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
        )
        return done.stdout.split()

    return complete


@pytest.fixture
def log_dir(tmp_path):
    for name in ("orders-0", "orders-11", "clicks-0", "orders-5.0123456789abcdef0123456789abcdef-delete"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    (tmp_path / "logs" / "orders-9").touch()
    return tmp_path / "logs"


@pytest.mark.skipif(BASH is None, reason="bash is missing")
def test_bash_completes_commands_options_and_partitions(bash, log_dir):
    assert bash("re") == ["recover", "reencode", "restore"]
    assert set(bash("")) == set(COMMANDS)
    assert bash("setup", "") == ["completion", "delta-jars", "warm-up"]
    assert set(bash("compact", "--re")) == {"--report", "--retry-quarantined"}
    assert bash("compact", str(log_dir), "--partition", "ord") == ["orders-0", "orders-11"]
    assert bash("compact", str(log_dir), "--log-format", "j") == ["json"]


def test_directories_are_left_to_the_shell(log_dir, monkeypatch, capfd):
    monkeypatch.setenv("_SEDIMENT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"sediment dump {log_dir}/or")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run(
        [sys.executable, "-c", "from sediment.jobs.cli import main; main(prog_name='sediment')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == f"file,{log_dir}/or"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    outcome = sediment("setup", "completion", shell)
    assert outcome.status == 0
    assert "_SEDIMENT_COMPLETE" in outcome.stdout


def test_completion_imports_nothing_heavy():
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from sediment.jobs.cli import main\n"
            "try: main(['compact', '--help'], standalone_mode=False)\n"
            "finally: print([name for name in ('pyspark', 'numba', 'pandas', 'jinja2', 'prometheus_client') "
            "if name in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", [*sorted(COMMANDS.keys() - {"setup"}), *(f"setup {name}" for name in setup.COMMANDS)])
def test_help_ends_with_examples_of_options_that_exist(name):
    outcome = sediment(*name.split(), "--help")
    assert outcome.status == 0
    examples = EXAMPLES[name.split()[-1]]
    assert examples
    for what, line in examples:
        assert f"{what}:\n" in outcome.stdout
        assert f"    {line}\n" in outcome.stdout
        assert line.startswith(f"sediment {name}")
        for word in line.split():
            if word.startswith("--"):
                assert word in outcome.stdout.partition("Examples:")[0], word
