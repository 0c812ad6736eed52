"""`server.properties` for a stock broker that starts on a clone as a single node.

    static quorum of one       controller.quorum.voters lists only this node
    loopback listeners         the port of the controller is the port of the broker plus one
    internal topics            they have replication factor 1, and the partition counts of the source
    held clone                 the cleaner is off; offsets, producers and transactional ids expire as late as possible

Invariant: no line contains a secret, and no line of a held clone permits the broker to delete records.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.internal_topics.coordinator_records import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

_PREFIXES = {
    CONSUMER_OFFSETS: "offsets.topic",
    TRANSACTION_STATE: "transaction.state.log",
    SHARE_GROUP_STATE: "share.coordinator.state.topic",
}
_WITH_MIN_ISR = (TRANSACTION_STATE, SHARE_GROUP_STATE)
HELD = {
    "log.cleaner.enable": "false",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "offsets.retention.minutes": str(INT32_MAX),
    "producer.id.expiration.ms": str(INT32_MAX),
    "transactional.id.expiration.ms": str(INT32_MAX),
    # Keeps open transactions open, although their timeouts passed long ago.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(INT32_MAX),
}
"""Settings with which a node deletes nothing and ends no transaction."""


def server_properties(
    log_dir: Path,
    node_id: int,
    *,
    host: str,
    port: int,
    partition_counts: Mapping[str, int],
    is_held: bool,
    more: Mapping[str, str] | None = None,
) -> str:
    """`more` contains further static settings; settings that this function writes take precedence over them."""
    address = f"[{host}]" if ":" in host else host
    controller = f"{address}:{port + 1}"
    lines = [
        "# Written by sediment for a clone.  Listeners are on this machine only.",
        "process.roles=broker,controller",
        f"node.id={node_id}",
        f"log.dirs={log_dir}",
        f"listeners=PLAINTEXT://{address}:{port},CONTROLLER://{controller}",
        f"advertised.listeners=PLAINTEXT://{address}:{port}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters={node_id}@{controller}",
        "auto.create.topics.enable=false",
        "default.replication.factor=1",
        "min.insync.replicas=1",
    ]
    for topic, prefix in _PREFIXES.items():
        lines.append(f"{prefix}.replication.factor=1")
        if topic in _WITH_MIN_ISR:
            lines.append(f"{prefix}.min.isr=1")
        if topic in partition_counts:
            lines.append(f"{prefix}.num.partitions={partition_counts[topic]}")
    held = HELD if is_held else {}
    own = {line.partition("=")[0] for line in lines} | held.keys()
    lines += [f"{key}={value}" for key, value in sorted((more or {}).items()) if key not in own]
    if held:
        lines.append("# Held: remove these lines, and restore the topics' configs, once the records may expire again.")
        lines += [f"{key}={value}" for key, value in held.items()]
    return "".join(f"{line}\n" for line in lines)
