"""Message schemas: their parts, and the notation of the files in `schemas/`.

A line without indentation begins a message, and an empty line ends it.  Each indented line is a field; the fields of
its structure follow with deeper indentation.

    HeartbeatRequest  request=12 versions=0-4 flexible=4+ listeners=broker
      groupId                   string                   0+
      generationId              int32                    0+
      memberId                  string                   0+
      groupInstanceId           string                   3+ default=null nullable=3+

    ConsumerGroupTargetAssignmentMemberValue  coordinator-value=7 versions=0 flexible=0+
      topicPartitions           [TopicPartition]         0+
        topicId                   uuid                     0+
        partitions                [int32]                  0+

A structure that several fields share is defined after the fields of the message.  Its definition is a line such as
`struct TopicPartitions 0+`, followed by the fields of the structure.

| word of a field | meaning |
| --- | --- |
| `0-3`, `4+`, `7` | the versions with the field |
| `default=` | the value in a new message, and in a version without the field; if not given, 0, false or empty |
| `nullable=4+` | the versions in which the field may be null |
| `tag=0` | number of a tagged field |
| `tagged=4+` | the versions in which the field is tagged, if it is not tagged in all |
| `flexible=none` | in every version, the field's length has the form of versions that are not flexible |
| `ignorable` | if a version does not have the field, the encoder silently drops its value |

The kind of a message is `request`, `response`, `header` or `data`; records have the kind `metadata`, `coordinator-key`
or `coordinator-value`.  The number after the kind is the API key or the type of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LAST_VERSION = 32767
FOLDER = Path(__file__).with_name("schemas")

_SUFFIX = ".schema"
_MESSAGE_LINE = re.compile(r"^(\w+)  (.*)$", re.MULTILINE)
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_INDENT = "  "


# --------------------------------------------------------------------------------------------------------------- parts
@dataclass(frozen=True, slots=True)
class VersionRange:
    lowest_version: int
    highest_version: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest_version <= version <= self.highest_version

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lowest_version, self.highest_version + 1))

    def __str__(self) -> str:
        if self.highest_version == LAST_VERSION:
            return f"{self.lowest_version}+"
        if self.lowest_version == self.highest_version:
            return str(self.lowest_version)
        return f"{self.lowest_version}-{self.highest_version}"


NO_VERSIONS = VersionRange(0, -1)


def parse_versions(text: str) -> VersionRange:
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), LAST_VERSION)
    lowest, _, highest = text.partition("-")
    return VersionRange(int(lowest), int(highest or lowest))


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """`type` is a primitive type or the name of a structure; if `is_array` is True, it is the type of the elements.

    `default` is the text after `default=`, empty if there is none.
    """

    name: str
    type: str
    is_array: bool
    versions: VersionRange
    default: str
    nullable_versions: VersionRange
    tag: int | None
    tagged_versions: VersionRange
    ignorable: bool
    never_flexible: bool

    @property
    def attribute(self) -> str:
        return snake_case(self.name)


@dataclass(frozen=True, slots=True)
class MessageLine:
    """`component` is the part of Kafka that defines the message."""

    component: str
    name: str
    kind: str
    number: int | None
    versions: VersionRange
    flexible_versions: VersionRange
    listeners: tuple[str, ...]
    latest_version_unstable: bool


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A message with its fields; `structures` contains the structures of its fields, at every depth, by name."""

    line: MessageLine
    fields: Sequence[FieldSchema]
    structures: Mapping[str, Sequence[FieldSchema]]


def snake_case(name: str) -> str:
    return _WORD_BOUNDARY.sub("_", name).lower()


# ------------------------------------------------------------------------------------------------------------- reading
@cache
def message_lines() -> Mapping[str, MessageLine]:
    return {
        match[1]: _parse_message_line(path.stem, match[1], match[2])
        for path in _files()
        for match in _MESSAGE_LINE.finditer(_text(path))
    }


def message_schema(name: str) -> MessageSchema:
    for path in _files():
        text = _text(path)
        start = text.find(f"\n{name}{_INDENT}")
        if start >= 0:
            line, *deeper = text[start + 1 :].partition("\n\n")[0].splitlines()
            return _parse_message(path.stem, line, deeper)
    raise KeyError(name)


def _parse_message(component: str, first: str, deeper: Sequence[str]) -> MessageSchema:
    name, _, words = first.partition(_INDENT)
    fields: list[FieldSchema] = []
    structures: dict[str, list[FieldSchema]] = {}
    open_structures = [fields]  # innermost last
    for line in deeper:
        content = line.lstrip()
        depth = (len(line) - len(content)) // len(_INDENT)
        del open_structures[depth:]
        if content.startswith("struct "):
            open_structures.append(structures.setdefault(content.split()[1], []))
            continue
        field = _parse_field(content)
        open_structures[-1].append(field)
        if field.type[0].isupper():
            open_structures.append(structures.setdefault(field.type, []))
    return MessageSchema(_parse_message_line(component, name, words), fields, structures)


def _parse_message_line(component: str, name: str, text: str) -> MessageLine:
    (kind, number), *words = (word.partition("=")[::2] for word in text.split())
    attributes = dict(words)
    return MessageLine(
        component=component,
        name=name,
        kind=kind,
        number=int(number) if number else None,
        versions=parse_versions(attributes["versions"]),
        flexible_versions=parse_versions(attributes["flexible"]),
        listeners=tuple(filter(None, attributes.get("listeners", "").split(","))),
        latest_version_unstable="latest-unstable" in attributes,
    )


def _parse_field(text: str) -> FieldSchema:
    name, kind, range_text, *words = text.split()
    attributes = dict(word.partition("=")[::2] for word in words)
    tag = attributes.get("tag")
    versions = parse_versions(range_text)
    tagged = parse_versions(attributes["tagged"]) if "tagged" in attributes else versions
    return FieldSchema(
        name=name,
        type=kind.strip("[]"),
        is_array=kind.startswith("["),
        versions=versions,
        default=attributes.get("default", ""),
        nullable_versions=parse_versions(attributes.get("nullable", "none")),
        tag=None if tag is None else int(tag),
        tagged_versions=NO_VERSIONS if tag is None else tagged,
        ignorable="ignorable" in attributes,
        never_flexible=attributes.get("flexible") == "none",
    )


@cache
def _files() -> Sequence[Path]:
    return sorted(FOLDER.glob(f"*{_SUFFIX}"))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
