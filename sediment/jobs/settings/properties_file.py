"""Java properties files, read with limits, because a path may name a device, a disk image or a file with secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sediment.engine.config_definitions import QUORUM_KEYS, ValueType, read_value
from sediment.jobs.process.input_files import read_input_file
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.properties import parse_properties

MOST_BYTES = 1 << 20
"""Largest size of a file that is read; a broker's own file has about ten thousand bytes."""

_NODE_ID = "node.id"
_BROKER_ID = "broker.id"
_FILE = "the properties file"
_ADVICE = "name a readable Java properties file"
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_LOOKS_LIKE_A_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}(\.[A-Za-z0-9_-]{1,40}){1,11}")


def read_properties(path: Path) -> dict[str, str]:
    content = read_bounded(path, MOST_BYTES, _FILE, _ADVICE)
    if content.startswith(_BYTE_ORDER_MARKS):
        raise SettingsError(
            "the properties file begins with a byte order mark, so a broker does not recognise its first key",
            path=str(path),
            advice="save the file without the mark, and check whether the broker should use the first key",
        )
    try:
        return parse_properties(content)
    except ValueError as error:
        raise SettingsError(f"{_FILE} cannot be read: {error}", path=str(path), advice=_ADVICE) from error


def read_quorum_keys(path: Path) -> dict[str, str]:
    return quorum_keys_of(read_properties(path))


def quorum_keys_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the `QUORUM_KEYS` of a broker's properties; if it has any, `broker.id` is the default of `node.id`."""
    found = {key: properties[key] for key in QUORUM_KEYS & properties.keys()}
    if found and _BROKER_ID in properties:
        found.setdefault(_NODE_ID, properties[_BROKER_ID])
    return found


def stated_node_id(properties: Mapping[str, str]) -> int | None:
    """Return the node id in a broker's properties: `node.id`, or else `broker.id`; None if neither is set.

    Source: Kafka's KafkaConfig.populateSynonyms and KafkaConfig.validateValues.
    """
    ids = {key: _whole_number(key, properties[key]) for key in (_NODE_ID, _BROKER_ID) if key in properties}
    if len(set(ids.values())) > 1:
        raise SettingsError(
            f"{_NODE_ID}={ids[_NODE_ID]} and {_BROKER_ID}={ids[_BROKER_ID]} in --config contradict each other",
            advice="give the node's own file",
        )
    # A negative `broker.id` without `node.id` gives no id, because brokers before Kafka 4.0 generated an id in this
    # case.
    if _NODE_ID not in ids and ids.get(_BROKER_ID, 0) < 0:
        return None
    return next(iter(ids.values()), None)


def is_zookeeper_file(properties: Mapping[str, str]) -> bool:
    # A node that is migrated to KRaft has `process.roles`, even while it still has `zookeeper.connect`.
    if "process.roles" in properties:
        return False
    return "zookeeper.connect" in properties or (_BROKER_ID in properties and _NODE_ID not in properties)


def _whole_number(key: str, text: str) -> int:
    number = read_value(ValueType.INT, text)
    if not isinstance(number, int):
        raise SettingsError(
            f"{key} in --config is not a number, so the node of this file is unknown",
            advice="give the node's own file",
        )
    return number


def shown_key(name: str) -> str:
    """Return `name` for a message, or hide a name that does not look like a key, because it may be a secret."""
    if _LOOKS_LIKE_A_KEY.fullmatch(name):
        return name
    return f"of {len(name)} characters (not shown, because it does not look like a key)"


def read_bounded(path: Path, most_bytes: int, what: str, advice: str) -> bytes:
    """Return the content of a file or pipe; `what` names it in errors.

    Raises:
        SettingsError: the file cannot be read, is neither a file nor a pipe, or has more than `most_bytes`.
    """
    return read_input_file(path, most_bytes, what, advice=advice, error_type=SettingsError)
