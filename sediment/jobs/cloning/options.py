"""Options of `clone`, some of which `adopt` shares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sediment.engine.clone.options import Part
from sediment.jobs.command_line.declaration import ONE_COMMAND, option
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import parse_count, parse_uuid
from sediment.segment_io.format.names import TopicPartition, parse_partition_directory
from sediment.server.network.endpoints import Endpoint, parse_endpoint

DEFAULT_LISTEN = Endpoint("127.0.0.1", 9092)

_MOST_PORT = 65534  # the controller uses the next port


def listen_option() -> Endpoint | None:
    return option(
        None,
        f"Let the broker listen on this address, and its controller on the next port (default: {DEFAULT_LISTEN}).",
        metavar="HOST:PORT",
        parse=lambda text: parse_listen(text),
        from_settings=ONE_COMMAND,
    )


def properties_file_option(**more: Any) -> Path | None:
    return option(
        None,
        "Also write the generated server.properties to FILE, which must not exist (default: write it only to the log "
        "directory).",
        name="server-properties",
        keyword="server_properties",
        from_settings=ONE_COMMAND,
        **more,
    )


@dataclass(frozen=True, slots=True)
class CloneRequest:
    to: Path
    host: str
    port: int
    target_version: str
    properties_file: Path | None = None


def parse_listen(text: str) -> Endpoint:
    endpoint = parse_endpoint(text, "--listen", least_port=1)
    if endpoint.port > _MOST_PORT:
        raise UsageError(f"--listen {text!r} leaves no port for the controller", advice="choose a lower port")
    return endpoint


def parse_parts(text: str) -> frozenset[Part]:
    """Return the comma-separated parts in the value of `--with`; an empty value names no part."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {part.value for part in Part}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--with {unknown[0]!r} is unknown", advice=f"choose from {', '.join(sorted(known))}")
    return frozenset(map(Part, names))


def parse_renames(texts: Iterable[str]) -> dict[str, str]:
    """Parse `OLD=NEW` texts, and return the new topic names, keyed by the old names."""
    renames: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"--rename {text!r} is malformed", advice="give OLD=NEW")
        if renames.setdefault(old, new) != new:
            raise UsageError(f"--rename gives topic {old!r} two names", advice="give one of them")
    return renames


def parse_until_offsets(texts: Iterable[str]) -> dict[TopicPartition, int]:
    """Parse `TOPIC-N:OFFSET` texts, and return the offsets by partition."""
    offsets: dict[TopicPartition, int] = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        offset = parse_count(number)
        if offset is None:
            raise UsageError(f"--until-offset {text!r} is malformed", advice="give TOPIC-N:OFFSET")
        partition, _ = parse_partition_directory(name)
        if offsets.setdefault(partition, offset) != offset:
            raise UsageError(f"--until-offset gives {partition} two offsets", advice="give one of them")
    return offsets


def check_cluster_id(text: str) -> str:
    try:
        parse_uuid(text)
    except ValueError as error:
        raise UsageError(f"--cluster-id: {error}", advice="leave it out for a random id") from error
    return text
