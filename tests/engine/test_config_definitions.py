"""The table of keys, compared with Kafka 4.2.0's own ConfigDefs (tests/data/kafka-4.2.0-config-keys.tsv)."""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path

import javaproperties
import pytest

from sediment.engine.config_definitions import (
    BROKER_KEYS,
    TOPIC_KEYS,
    Key,
    Value,
    ValueType,
    is_other_broker_key,
    read_value,
)
from sediment.jobs.settings.resolve import Origin, parse_value
from sediment.segment_io.errors import SettingsError

ROOT = Path(__file__).parents[2]
with (ROOT / "tests" / "data" / "kafka-4.2.0-config-keys.tsv").open(newline="") as _source:
    KAFKA = {(row["scope"], row["key"]): row for row in csv.DictReader(_source, delimiter="\t")}
OURS = {"topic": TOPIC_KEYS, "broker": BROKER_KEYS}
ALL_KEYS = [(scope, name) for scope, keys in OURS.items() for name in keys if not name.startswith("sediment.")]

# Where a value that Kafka accepts would break Kafka's own log, or is accepted here with a warning (kafka-log 06).
STRICTER_OR_WIDER = {
    "segment.bytes", "log.segment.bytes", "internal.segment.bytes", "segment.index.bytes", "log.index.size.max.bytes",
    "log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second", "log.cleaner.dedupe.buffer.size",
    "log.roll.ms", "log.roll.jitter.ms", "log.retention.ms", "log.retention.minutes", "log.retention.hours",
}  # fmt: skip


def kafka_text(value: Value | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value).replace("e+", "E")


@pytest.mark.parametrize(("scope", "name"), ALL_KEYS)
def test_type_and_default_are_kafkas(scope: str, name: str) -> None:
    key, row = OURS[scope][name], KAFKA[scope, name]
    default = "[]" if name == "log.dir" else kafka_text(key.default)
    assert (key.type.name, default) == (row["type"], row["default"])


@pytest.mark.parametrize(("scope", "name"), [(s, n) for s, n in ALL_KEYS if n not in STRICTER_OR_WIDER])
def test_range_is_kafkas(scope: str, name: str) -> None:
    key, row = OURS[scope][name], KAFKA[scope, name]
    bounds = re.fullmatch(r"\[(-?[0-9]+),\.\.\.(?:,(-?[0-9]+))?\](?: or (-?[0-9]+))?", row["range"])
    if bounds:
        low, high, also = (int(bound) if bound else None for bound in bounds.groups())
        assert accepts(key, low) and not (low is not None and accepts(key, low - 1) and also != low - 1)
        assert high is None or (accepts(key, high) and not accepts(key, high + 1))
        assert also is None or accepts(key, also)
    elif key.one_of:
        assert f"[{', '.join(key.one_of)}]" == row["range"]
    else:
        assert (key.at_least, key.at_most, key.refused) == (None, None, ())


def accepts(key: Key, number: int | None) -> bool:
    try:
        parse_value(key, str(number), Origin.SET)
    except SettingsError:
        return False
    return True


def test_every_topic_key_of_kafka_is_known() -> None:
    assert {name for scope, name in KAFKA if scope == "topic"} == set(TOPIC_KEYS)


def test_every_broker_key_of_kafka_is_known_or_says_nothing_about_logs() -> None:
    names = {name for scope, name in KAFKA if scope == "broker"}
    assert [name for name in sorted(names) if name not in BROKER_KEYS and not is_other_broker_key(name)] == []
    assert not any(is_other_broker_key(name) for name in TOPIC_KEYS)


def test_a_topic_keys_broker_names_are_broker_keys_of_its_type() -> None:
    for key in TOPIC_KEYS.values():
        for broker in key.broker_names:
            types = {key.type, BROKER_KEYS[broker.name].type}
            assert len(types) == 1 or types == {ValueType.INT, ValueType.LONG}, (key.name, broker.name)


def test_the_properties_file_lists_every_key_that_applies_with_its_default() -> None:
    text = (ROOT / "conf" / "sediment.properties").read_text(encoding="ascii")
    assert javaproperties.loads(text) == {}
    listed = javaproperties.loads("\n".join(re.findall(r"^#([a-z.0-9]+=.*)$", text, re.MULTILINE)))
    assert set(listed) == {key.name for key in BROKER_KEYS.values() if key.applies}
    derived = {"log.retention.ms": 604_800_000, "log.retention.minutes": 10_080, "log.roll.ms": 604_800_000,
               "log.roll.jitter.ms": 0, "log.flush.interval.ms": 2**63 - 1}  # fmt: skip
    for name, value in listed.items():
        default = BROKER_KEYS[name].default
        assert parse_value(BROKER_KEYS[name], value, Origin.FILE) == (derived[name] if default is None else default)


def test_the_properties_file_says_above_every_key_what_it_takes() -> None:
    lines = (ROOT / "conf" / "sediment.properties").read_text(encoding="ascii").splitlines()
    for above, line in pairwise(lines):
        key = re.match(r"^#([a-z.0-9]+)=", line)
        if key:
            assert above == f"#   ({BROKER_KEYS[key[1]].range_text()})", line


def test_a_number_of_thousands_of_digits_is_out_of_range_and_leading_zeros_do_not_count() -> None:
    for kind in (ValueType.INT, ValueType.LONG):
        assert read_value(kind, "9" * 5000) is None
        assert read_value(kind, "-" + "0" * 5000 + "7") == -7
        assert read_value(kind, "0" * 5000) == 0
