"""Configs of topics and brokers as Kafka's tools print them, or as JSON.

    Dynamic configs for topic t are:                    kafka-configs.sh --describe --entity-type topics
      retention.ms=5 sensitive=false synonyms={…}
    All configs for topic t are:                        the same with --all: also what the topic leaves to the broker
    Configs for topic 't' are retention.ms=5,…          the same with --zookeeper
    Topic: t … Configs: retention.ms=5,…                kafka-topics.sh --describe
    Dynamic configs for broker 1 are:                   kafka-configs.sh --describe --entity-type brokers
    Default configs for brokers in the cluster are:
    {"t": {"retention.ms": "5"}}                        JSON; brokers have their id as name, or "default" for all

The first synonym of a value names its source; a value without synonyms comes from the file of the broker that answered,
or is Kafka's default.  kafka-topics.sh does not show sources, and leaves out values without synonyms.  Outputs may
follow one another in one file.

Invariants: a line in no known form is an error, because it may be a part of a config.  A topic or broker that is not
listed is unknown.  No value and no line of the file appears in a message: it may be a secret.

Source: Kafka's ConfigCommand and TopicCommand, 0.11 to 4.2.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sediment.engine.config_definitions import BROKER_KEYS, DYNAMIC_BROKER_KEYS, REMOVED_KEYS, TOPIC_KEYS
from sediment.jobs.settings.properties_file import read_bounded, shown_key
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.names import is_topic_name

MOST_BYTES = 256 << 20
"""Largest size of a file that is read; `--all` prints about 5,000 bytes for a topic."""

_ALL_BROKERS = "default"
_FORMAT_KEY = "message.format.version"
_LIKENESS = 0.8  # of an unknown key in JSON and a known key, above which the file is refused; 1: equal

_SECTION = re.compile(r"(All configs|Dynamic configs|Configs) for (topic|broker) ('?)([^\s']+)\3 are:\s*")
_SECTION_OF_ALL_BROKERS = re.compile(r"Default configs? for brokers in the cluster are:\s*")
_ENTRY = re.compile(r"\s*([^\s=]+)=(.*) sensitive=(?:true|false) synonyms=\{(.*)\}\s*")
_IN_ZOOKEEPER = re.compile(r"Configs for (?:(topic|brokers?) '([^\s']+)'|(default) brokers?) are(?: (.*))?")
_TOPIC = re.compile(
    r"Topic: ?(\S+)\s+(?:TopicId: ?\S+\s+)?PartitionCount: ?\d+\s+ReplicationFactor: ?-?\d*\s+Configs:(.*)"
)
_NOISE = re.compile(r"(?:Warning: --zookeeper is deprecated|Use --bootstrap-server instead|SLF4J: |Picked up ).*")
_MARKED = re.compile(r"\s+MarkedForDeletion: ?\w+\s*$")
_PARTITION = re.compile(r"\s*Topic: ?\S+\s+Partition: ?\d+\s.*")
_NEXT_PAIR = re.compile(r",(?=[A-Za-z0-9._-]+=)")
_BROKER_ID = re.compile(r"[0-9]{1,10}")


class DescribedSource(StrEnum):
    """Kafka's name of the place that gives a value (ConfigEntry.ConfigSource)."""

    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    BROKER = "DYNAMIC_BROKER_CONFIG"
    ALL_BROKERS = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    FILE = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True)
class DescribedValue:
    text: str
    source: DescribedSource


@dataclass(frozen=True, slots=True)
class _Described:
    """One topic or broker (`kind`) of a file; `is_complete` is True if also the values of other sources are listed.

    `is_unsourced` is True if values of other sources may be among the topic's own.
    """

    kind: str
    name: str
    values: dict[str, DescribedValue] = field(default_factory=dict)
    is_complete: bool = False
    is_unsourced: bool = False


@dataclass(frozen=True, slots=True)
class DescribedTopicConfigs:
    """Configs by topic, for every listed topic: its `own`, and the ones that it gets from the broker that answered.

    For topics in `unsourced`, the `own` configs may also be those of the broker that answered.  `formats` has each
    topic's `message.format.version`, by which a broker before Kafka 3.0 keeps older formats.
    """

    own: Mapping[str, Mapping[str, str]]
    inherited: Mapping[str, Mapping[str, DescribedValue]]
    unsourced: frozenset[str] = frozenset()
    formats: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """Dynamic broker configs by node id as text; `of_all` are those of all brokers, and None if the file lacks them.

    For a node in `complete`, `by_node` includes the configs of all brokers.  With `lists_every_node`, a node that is
    missing has no configs.
    """

    by_node: Mapping[str, Mapping[str, str]]
    of_all: Mapping[str, str] | None
    complete: frozenset[str] = frozenset()
    lists_every_node: bool = False
    path: str = ""

    def of_node(self, node_id: int | None) -> Mapping[str, str]:
        if node_id is None:
            raise self._lacks(
                "is of no use for a directory whose node is unknown", "give --config FILE, the node's file"
            )
        own = self.by_node.get(str(node_id), {} if self.lists_every_node else None)
        if own is None:
            raise self._lacks(
                f"does not list broker {node_id}", "describe the brokers while all of them run, without --entity-name"
            )
        if str(node_id) in self.complete:
            return own
        if self.of_all is None:
            raise self._lacks(
                "does not list the default configs of all brokers",
                "describe the brokers without --entity-name, or add the output for --entity-default",
            )
        return {**self.of_all, **own}

    def other_node_with(self, node_id: int | None, key: str, text: str) -> str | None:
        return next((name for name, own in self.by_node.items() if name != str(node_id) and own.get(key) == text), None)

    def _lacks(self, what: str, advice: str) -> SettingsError:
        return SettingsError(f"--broker-configs {what}", path=self.path, advice=advice)


# ----------------------------------------------------------------------------------------------------------- the files
def read_topic_configs(path: Path) -> DescribedTopicConfigs:
    file = _File(path, "--topic-configs", "topics", TOPIC_KEYS.keys() | {_FORMAT_KEY})
    topics: dict[str, _Described] = {}
    for described in file.described():
        if described.kind != "topic":
            continue
        if not is_topic_name(described.name):
            raise file.error("has a name that is not a valid name of a topic")
        known = topics.setdefault(described.name, described)
        if known.is_unsourced == described.is_unsourced and _own(known) != _own(described):
            raise file.error(f"lists topic {described.name} twice, with other configs")
        if known.is_unsourced or described.is_complete:
            topics[described.name] = described
    if not topics:
        raise file.error("lists no topic")
    formats = {name: found.text for name, topic in topics.items() if (found := topic.values.pop(_FORMAT_KEY, None))}
    inherited = {
        name: {key: value for key, value in topic.values.items() if value.source != DescribedSource.TOPIC}
        for name, topic in topics.items()
        if topic.is_complete
    }
    unsourced = frozenset(name for name, topic in topics.items() if topic.is_unsourced)
    return DescribedTopicConfigs({name: _own(topic) for name, topic in topics.items()}, inherited, unsourced, formats)


def _own(topic: _Described) -> dict[str, str]:
    return {key: value.text for key, value in topic.values.items() if value.source == DescribedSource.TOPIC}


def read_broker_configs(path: Path) -> BrokerConfigs:
    file = _File(path, "--broker-configs", "brokers", DYNAMIC_BROKER_KEYS)
    brokers: dict[str, dict[str, str]] = {}
    complete = set()
    for described in file.described():
        if described.kind != "broker":
            continue
        if described.name != _ALL_BROKERS and not _BROKER_ID.fullmatch(described.name):
            raise file.error("has a name that is not the id of a broker")
        sources = {DescribedSource.BROKER, DescribedSource.ALL_BROKERS}
        if described.is_complete and described.name != _ALL_BROKERS:
            complete.add(described.name)
        elif described.name != _ALL_BROKERS:
            sources = {DescribedSource.BROKER}
        values = {key: value.text for key, value in described.values.items() if value.source in sources}
        if brokers.setdefault(described.name, values) != values:
            raise file.error(f"lists broker {described.name} twice, with other configs")
    if not brokers and not file.is_json:
        error = file.error("lists no broker")
        raise SettingsError(error.what, path=error.path, advice="if no broker has dynamic configs, write {} into FILE")
    of_all = brokers.pop(_ALL_BROKERS, {} if file.is_json else None)
    return BrokerConfigs(brokers, of_all, frozenset(complete), lists_every_node=file.is_json, path=str(path))


class _File:
    """One file, given with `option`; only values of the `known` keys are kept."""

    def __init__(self, path: Path, option: str, what: str, known: Collection[str]) -> None:
        self._path = path
        self._option = option
        self._what = what
        self._known = known
        self._text = self._read()
        self.is_json = self._text.lstrip().startswith("{")

    def described(self) -> Iterator[_Described]:
        return self._of_json() if self.is_json else self._of_tools()

    def error(self, what: str) -> SettingsError:
        return SettingsError(
            f"{self._option} {what}",
            path=str(self._path),
            advice=f"give the unchanged output of kafka-configs.sh --describe --entity-type {self._what}, or JSON",
        )

    def _read(self) -> str:
        content = read_bounded(self._path, MOST_BYTES, f"{self._option} FILE", "name a readable file")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise self.error("is not text in UTF-8") from None

    # ------------------------------------------------------------------------------------------------- output of tools
    def _of_tools(self) -> Iterator[_Described]:
        if self._text and not self._text.endswith("\n"):
            raise self.error("does not end with a complete line, so a part of it may be missing")
        section: _Described | None = None
        for number, line in enumerate(self._text.splitlines(), start=1):
            if not line.strip() or _PARTITION.fullmatch(line) or _NOISE.fullmatch(line):
                continue
            entry = _ENTRY.fullmatch(line)
            if entry is not None and section is not None:
                self._add_entry(section, *entry.groups())
                continue
            if section is not None:
                yield section
            section = _section(line)
            if section is None:
                described = self._on_one_line(line)
                if described is None:
                    raise self.error(f"has a line {number} that Kafka's tools do not print")
                yield described
        if section is not None:
            yield section

    def _add_entry(self, section: _Described, key: str, text: str, synonyms: str) -> None:
        if key not in self._known or text == "null":
            return
        section.values[key] = DescribedValue(text, _source(section, synonyms))

    def _on_one_line(self, line: str) -> _Described | None:
        found = _TOPIC.fullmatch(line)
        if found is not None:
            values = self._pairs(_MARKED.sub("", found[2]).strip(), DescribedSource.TOPIC)
            return _Described("topic", found[1], values, is_unsourced=True)
        found = _IN_ZOOKEEPER.fullmatch(line)
        if found is None:
            return None
        kind, name, is_default, pairs = found.groups()
        if is_default:
            return _Described("broker", _ALL_BROKERS, self._pairs(pairs, DescribedSource.ALL_BROKERS))
        if kind == "topic":
            return _Described("topic", name, self._pairs(pairs, DescribedSource.TOPIC))
        return _Described("broker", name, self._pairs(pairs, DescribedSource.BROKER))

    def _pairs(self, text: str | None, source: DescribedSource) -> dict[str, DescribedValue]:
        pairs = [pair.partition("=") for pair in _NEXT_PAIR.split(text or "") if pair.strip()]
        if not all(equals for _, equals, _ in pairs):
            raise self.error("has configs without key=value")
        return {key.strip(): DescribedValue(value, source) for key, _, value in pairs if key.strip() in self._known}

    # ------------------------------------------------------------------------------------------------------------ JSON
    def _of_json(self) -> Iterator[_Described]:
        try:
            content = json.loads(self._text, object_pairs_hook=self._object)
        except (ValueError, RecursionError):
            raise self.error("is not JSON") from None
        for name, configs in content.items():
            if not isinstance(configs, dict):
                raise self.error('is not JSON of the form {"name": {"key": "value"}}')
            kind = "topic" if self._what == "topics" else "broker"
            source = DescribedSource.TOPIC if kind == "topic" else DescribedSource.BROKER
            values = {key: DescribedValue(self._json_text(value), source) for key, value in configs.items()}
            yield _Described(kind, name, {key: value for key, value in values.items() if self._is_known(key)})

    def _object(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise self.error("has the same name twice in one object")
        return dict(pairs)

    def _json_text(self, value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str | int | float):
            return str(value)
        raise self.error("has a value that is neither a text nor a number")

    def _is_known(self, key: str) -> bool:
        """Return True if the key is one of the known ones; refuse a key that somebody may have misspelt."""
        if key in self._known:
            return True
        is_similar = bool(difflib.get_close_matches(key, self._known, n=1, cutoff=_LIKENESS))
        if key not in REMOVED_KEYS and (is_similar or key in BROKER_KEYS or key in TOPIC_KEYS):
            kind = "a config of topics" if self._what == "topics" else "a dynamic config of brokers"
            raise SettingsError(
                f"{self._option} has the key {shown_key(key)}, which is not {kind}",
                path=str(self._path),
                advice="correct the name",
            )
        return False


def _section(line: str) -> _Described | None:
    if _SECTION_OF_ALL_BROKERS.fullmatch(line):
        return _Described("broker", _ALL_BROKERS)
    found = _SECTION.fullmatch(line)
    if found is None:
        return None
    what, kind, _, name = found.groups()
    return _Described(kind, name, is_complete=what == "All configs")


def _source(section: _Described, synonyms: str) -> DescribedSource:
    """Only with --all, a section also has values of other sources than its own.

    A source that Kafka does not have counts as the topic or broker itself, so that the value is not left out.
    """
    if section.kind == "topic":
        own = DescribedSource.TOPIC
    else:
        own = DescribedSource.ALL_BROKERS if section.name == _ALL_BROKERS else DescribedSource.BROKER
    if not section.is_complete:
        return own
    if not synonyms:
        return DescribedSource.DEFAULT
    name = synonyms.partition(":")[0]
    return DescribedSource(name) if name in set(DescribedSource) else own
