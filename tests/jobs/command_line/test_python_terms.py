"""Texts that name options, as a caller in Python reads them."""

from __future__ import annotations

import pytest

from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.command_line.python_terms import in_python, options_by_name
from sediment.jobs.command_line.shared_options import GivenOptions

OPTIONS = options_by_name((GivenOptions, CompactOptions))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give --output a destination", "give output a destination"),
        ("give --keep-before DIR", "give keep_before=DIR"),
        ("--strategy split excludes --key-equality exact", "strategy='split' excludes key_equality='exact'"),
        ("--strategy is split", "strategy is split"),
        ("--topic 'a-*' matches no topic", "topics='a-*' matches no topic"),
        ("leave out --partition, --topic and --set", "leave out partitions, topics and settings"),
        ("give --set a:cleanup.policy=compact; run again", "give settings={'a:cleanup.policy': 'compact'}; run again"),
        ("Plan for `compact --force`, which", "Plan for `compact(force=…)`, which"),
        ("--now-ms=5 and --json", "now_ms=5 and --json"),
        ("no LOG_DIR is given", "no log directory is given"),
        ("leave LOG_DIR unchanged", "leave the log directory unchanged"),
        ("Compact LOG_DIR...", "Compact the log directories"),
        ("adopt takes one LOG_DIR", "adopt takes one log directory"),
        ("so that `verify DIR LOG_DIR` can check", "so that `verify(DIR)` can check"),
        ("Exit with status 1 if a result", "`failed` is True if a result"),
        ("orders--2 and a -- b", "orders--2 and a -- b"),
    ],
)
def test_names_of_options_become_keywords(text: str, expected: str) -> None:
    assert in_python(text, OPTIONS) == expected


def test_options_of_the_tools_of_kafka_stay() -> None:
    text = "of kafka-configs.sh --describe --entity-type topics; --config"
    assert in_python(text, OPTIONS) == "of kafka-configs.sh --describe --entity-type topics; config"
