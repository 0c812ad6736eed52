"""Message schemas of Sediment, written from the JSON message descriptions in Kafka's JARs.

`make schemas` writes `sediment/segment_io/protocol/schemas/`, one file for each JAR with descriptions.  Requests and
responses are those of the reference, whose behaviour `serve` has.  Records are those of the newest Kafka, because a
directory may be a broker's of that release.  For a later Kafka, change the versions in tests/conformance/oracle.py and
run it again; `git diff` shows what that Kafka changed.

Only facts are taken: names, types, versions, defaults and tags.  Descriptions of removed messages (`none` as their
valid versions) are left out.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol.schema import FOLDER, NO_VERSIONS, VersionRange, parse_versions
from tests.conformance.oracle import NEWEST_VERSION, REFERENCE_VERSION, kafka_jars

JARS = {
    "kafka-clients": REFERENCE_VERSION,
    "kafka-group-coordinator": NEWEST_VERSION,
    "kafka-transaction-coordinator": NEWEST_VERSION,
    "kafka-share-coordinator": NEWEST_VERSION,
    "kafka-metadata": NEWEST_VERSION,
    "kafka-storage": NEWEST_VERSION,
}
_DESCRIPTION = re.compile(r"(common/)?(message|metadata)/\w+\.json")
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_HEADING = """\
# Message schemas of Apache Kafka {version}: facts of the message descriptions in {jar}-{version}.jar.
# Apache Kafka is Copyright the Apache Software Foundation, licensed under the Apache License 2.0.
# Written by `make schemas`; sediment/segment_io/protocol/schema.py describes the notation.
"""

Description = Mapping[str, Any]


def schema_files(versions: Mapping[str, str] = JARS) -> dict[str, str]:
    """Return name and content of every schema file, from Kafka's JARs of the given versions."""
    files = {}
    for jar, version in versions.items():
        (path,) = kafka_jars(version).glob(f"*{jar}-{version}.jar")
        messages = sorted(descriptions(path), key=_order)
        texts = [_HEADING.format(version=version, jar=jar)]
        texts += ["\n".join(_message(message)) + "\n" for message in messages]
        files[f"{jar.removeprefix('kafka-')}.schema"] = "\n".join(texts)
    return files


def described_alike(version: str) -> set[str]:
    """Return the names of the messages that a release of Kafka describes as the schema files do."""
    ours = {path.name: _messages_of(path.read_text(encoding="utf-8")) for path in FOLDER.iterdir()}
    theirs = {name: _messages_of(text) for name, text in schema_files(dict.fromkeys(JARS, version)).items()}
    return {text.split(maxsplit=1)[0] for name, texts in ours.items() for text in texts & theirs[name]}


def _messages_of(content: str) -> set[str]:
    return {text.rstrip() for text in content.split("\n\n") if not text.startswith("#")}


def descriptions(jar: Path) -> Iterator[Description]:
    """Yield the descriptions in a JAR of messages that have a valid version."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if _DESCRIPTION.fullmatch(name):
                found = json.loads(_COMMENT.sub("", archive.read(name).decode()))
                if found["type"] not in ("metadata-type", "coordinator-type") and found["validVersions"] != "none":
                    yield found


def _order(message: Description) -> tuple[bool, int, str, str]:
    number = message.get("apiKey", -1)
    return message["type"] == "data", number, message["type"], message["name"]


def _message(message: Description) -> Iterator[str]:
    number = f"={message['apiKey']}" if "apiKey" in message else ""
    words = [f"{message['type']}{number}"]
    words += [f"versions={parse_versions(message['validVersions'])}"]
    words += [f"flexible={message.get('flexibleVersions', 'none')}"]
    if "listeners" in message:
        words.append(f"listeners={','.join(message['listeners'])}")
    if message.get("latestVersionUnstable"):
        words.append("latest-unstable")
    yield f"{message['name']}  {' '.join(words)}"
    yield from _fields(message["fields"], "  ")
    for structure in message.get("commonStructs", ()):
        yield f"  struct {structure['name']}  {structure['versions']}"
        yield from _fields(structure["fields"], "    ")


def _fields(fields: Sequence[Description], indent: str) -> Iterator[str]:
    for field in fields:
        yield f"{indent}{' '.join(_words(field))}"
        yield from _fields(field.get("fields", ()), f"{indent}  ")


def _words(field: Description) -> Iterator[str]:
    kind = field["type"]
    tagged = _versions(field, "taggedVersions")
    versions = _versions(field, "versions") if "versions" in field else tagged
    nullable = _versions(field, "nullableVersions")
    yield f"{field['name'][0].lower()}{field['name'][1:]:<24}"
    yield f"{f'[{kind[2:]}]' if kind.startswith('[]') else kind:<24}"
    yield f"{versions!s}"
    default = field.get("default")
    if default not in (None, ""):
        yield f"default={default if isinstance(default, str) else json.dumps(default)}"
    if nullable != NO_VERSIONS:
        yield f"nullable={nullable}"
    if "tag" in field:
        yield f"tag={field['tag']}"
        if tagged != versions:
            yield f"tagged={tagged}"
    if "flexibleVersions" in field:
        yield f"flexible={field['flexibleVersions']}"
    if field.get("ignorable"):
        yield "ignorable"


def _versions(field: Description, name: str) -> VersionRange:
    return parse_versions(field.get(name) or "none")


def main() -> None:
    """Write the files, and remove others."""
    FOLDER.mkdir(exist_ok=True)
    files = schema_files()
    for path in FOLDER.glob("*.schema"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
