"""The options that commands share."""

from __future__ import annotations

import pytest

from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment


def test_a_relative_log_directory_is_the_same_to_tasks_with_another_working_directory(tmp_path, monkeypatch):
    case = load_case("plain", tmp_path)
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": case.before})
    monkeypatch.chdir(tmp_path)
    outcome = sediment("compact", "logs", "--dry-run", "--json", "--set=plain:cleanup.policy=compact")
    assert outcome.partitions()["plain-0"]["log_dir"] == str(log_dir)


@pytest.mark.parametrize("command", ["plan", "compact", "expire", "recover", "snapshot"])
@pytest.mark.parametrize("now_ms", [-1, 1 << 63, 10**30])
def test_a_clock_outside_of_64_bits_is_wrong_use(tmp_path, command, now_ms):
    more = ["--to=table"] if command == "snapshot" else []
    outcome = sediment(command, tmp_path, f"--now-ms={now_ms}", *more)
    assert outcome.status == 2 and "--now-ms" in outcome.stderr
