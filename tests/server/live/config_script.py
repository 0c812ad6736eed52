"""One script of changes of dynamic configs of brokers, groups and client metrics; a broker's answers are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol import messages as m
from tests.server.network.listeners import Client

RECORDED_CONFIGS = Path(__file__).parents[2] / "data" / "configs.json.xz"
"""The answers of a broker of Kafka 4.2.0, compressed (`tests.e2e.test_live_serve` compares them)."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
BROKER, CLIENT_METRICS, GROUP = 4, 16, 32
_SETTLED_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_VALUES: dict[str, Sequence[str]] = {
    "log.retention.ms": ("60000", "-1", "0", "-2", "x", ""),
    "log.retention.bytes": ("5", "-1"),
    "log.cleanup.policy": ("compact", "compact,delete", "none"),
    "log.segment.bytes": ("1048576", "5"),
    "log.cleaner.threads": ("2", "5", "-1"),
    "log.cleaner.min.cleanable.ratio": ("0.1", "2"),
    "log.cleaner.io.max.bytes.per.second": ("1000000",),
    "log.cleaner.dedupe.buffer.size": ("2000000",),
    "log.message.timestamp.type": ("LogAppendTime", "Other"),
    "compression.type": ("zstd", "none"),
    "message.max.bytes": ("5000", "-5"),
    "num.io.threads": ("9", "100", "1"),
    "max.connections": ("50",),
    "log.retention.hours": ("5",),
    "log.cleaner.enable": ("false",),
    "offsets.retention.minutes": ("5",),
    "no.such.key": ("1",),
    "unclean.leader.election.enable": ("true", "x"),
}
_GROUP_VALUES: dict[str, Sequence[str]] = {
    "consumer.session.timeout.ms": ("50000", "1000", "70000", "x", "0"),
    "consumer.heartbeat.interval.ms": ("6000", "100", "20000"),
    "share.isolation.level": ("read_committed", "other"),
    "share.auto.offset.reset": ("earliest", "by_duration:PT1H"),
    "share.record.lock.duration.ms": ("20000", "500", "5000", "90000"),
    "streams.num.standby.replicas": ("1", "9"),
    "no.such": ("1",),
}
_METRICS_VALUES: dict[str, Sequence[str]] = {
    "interval.ms": ("1000", "5", "x"),
    "metrics": ("org.apache.kafka.producer.,other", "*"),
    "match": ("client_id=a.*,client_software_name=b", "client_id", "other=b"),
    "no.such": ("1",),
}


class ConfigScript:
    """A conversation with the server of node `node`; `run` returns each request with its answer.

    A broker needs some time until its answers reflect a change, so it is asked until they are those of `expected`.
    """

    def __init__(self, client: Client, node: int, expected: Sequence[Any] = ()) -> None:
        self.lines: list[list[Any]] = []
        self._client = client
        self._node = str(node)
        self._expected = expected

    def run(self) -> list[list[Any]]:
        """Ask everything, and return the lines."""
        for name in (self._node, ""):
            self._try_all(BROKER, name, _VALUES)
        self._lists()
        self._try_all(GROUP, "group", _GROUP_VALUES)
        self._try_all(CLIENT_METRICS, "subscription", _METRICS_VALUES)
        self._errors()
        self._sources()
        return self.lines

    def _try_all(self, kind: int, name: str, values: dict[str, Sequence[str]]) -> None:
        for key, texts in values.items():
            for text in texts:
                self.alter(kind, name, (key, SET, text))
                self.describe(kind, name, key)
            self.alter(kind, name, (key, DELETE, None))
            self.describe(kind, name, key)

    def _lists(self) -> None:
        self.alter(BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
        self.describe(BROKER, "", "log.cleanup.policy")
        self.alter(BROKER, "", ("log.cleanup.policy", SUBTRACT, "delete"))
        self.describe(BROKER, "", "log.cleanup.policy")
        self.alter(BROKER, "", ("log.cleanup.policy", DELETE, None))
        self.alter(BROKER, "", ("log.retention.ms", APPEND, "1"))
        self.alter(CLIENT_METRICS, "lists", ("metrics", APPEND, "a"), ("metrics", APPEND, "b"))
        self.alter(CLIENT_METRICS, "lists", ("metrics", APPEND, "a"))
        self.alter(CLIENT_METRICS, "lists", ("metrics", APPEND, "b"))
        self.describe(CLIENT_METRICS, "lists", "metrics")
        self.alter(GROUP, "lists", ("consumer.session.timeout.ms", APPEND, "50000"))

    def _errors(self) -> None:
        for kind in (GROUP, CLIENT_METRICS):
            self.alter(kind, "", ("interval.ms", SET, "1000"))
            self.describe(kind, "", "interval.ms")
        self.alter(BROKER, self._node, ("node.id", SET, "9"))
        self.alter(BROKER, self._node, ("ssl.keystore.type", SET, "JKS"))
        self.alter(BROKER, "", ("listeners", SET, "PLAINTEXT://:9"))
        self.alter(BROKER, self._node, ("min.insync.replicas", SET, "1"))
        self.alter(BROKER, "", ("min.insync.replicas", SET, "1"))
        self.alter(BROKER, "", ("min.insync.replicas", DELETE, None))
        self.alter(BROKER, "x", ("log.retention.ms", SET, "5"))
        self.alter(BROKER, "77", ("log.retention.ms", SET, "5"))
        self.alter(BROKER, self._node, ("log.retention.ms", SET, None))
        self.alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"), validate_only=True)
        self.describe(GROUP, "g", "consumer.session.timeout.ms")
        self.replace(GROUP, "g", ("consumer.session.timeout.ms", "47000"))
        self.describe(GROUP, "g", "consumer.session.timeout.ms")
        self.replace(GROUP, "g")
        self.describe(GROUP, "g", "consumer.session.timeout.ms")
        self.replace(BROKER, self._node, ("log.retention.ms", "8000"))
        self.describe(BROKER, self._node, "log.retention.ms")
        self.replace(BROKER, self._node)
        self.describe(BROKER, self._node, "log.retention.ms")
        self.replace(BROKER, "")

    def _sources(self) -> None:
        self.alter(BROKER, "", ("log.retention.ms", SET, "7000"), ("log.segment.bytes", SET, "2000000"))
        self.alter(BROKER, self._node, ("log.retention.ms", SET, "9000"))
        keys = ("log.retention.ms", "log.retention.minutes", "log.retention.hours", "log.segment.bytes", "log.roll.ms")
        self.describe(BROKER, self._node, *keys)
        self.alter(BROKER, self._node, ("log.retention.ms", DELETE, None))
        self.describe(BROKER, self._node, *keys)

    # -------------------------------------------------------------------------------------------------------- requests
    def alter(
        self, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
    ) -> tuple[int, str | None]:
        """Change configs, and return the error."""
        request = m.IncrementalAlterConfigsRequest
        configs = [
            request.AlterableConfig(name=key, config_operation=kind, value=value) for key, kind, value in changes
        ]
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        (found,) = self._client.ask(request(resources=[resource], validate_only=validate_only), 1).responses
        self.lines.append([f"alter {kind} {name!r} {changes}", [found.error_code, found.error_message]])
        return found.error_code, found.error_message

    def replace(self, kind: int, name: str, *configs: tuple[str, str]) -> None:
        """Replace all configs."""
        request = m.AlterConfigsRequest
        given = [request.AlterableConfig(name=key, value=value) for key, value in configs]
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
        (found,) = self._client.ask(request(resources=[resource]), 2).responses
        self.lines.append([f"replace {kind} {name!r} {configs}", [found.error_code, found.error_message]])

    def describe(self, kind: int, name: str, *keys: str) -> None:
        """Describe some configs."""

        def read() -> list[Any]:
            request = m.DescribeConfigsRequest
            resource = request.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(keys)
            )
            (found,) = self._client.ask(request(resources=[resource], include_synonyms=True), 4).results
            rows = {
                each.name: [
                    each.value,
                    each.config_source,
                    each.read_only,
                    each.is_sensitive,
                    each.config_type,
                    [[synonym.name, synonym.value, synonym.source] for synonym in each.synonyms],
                ]
                for each in sorted(found.configs, key=lambda config: config.name)
            }
            return [f"describe {kind} {name!r} {keys}", [found.error_code, found.error_message or None, rows]]

        self.lines.append(self._settled(read))

    def _settled(self, read: Callable[[], list[Any]]) -> list[Any]:
        limit = time.monotonic() + _SETTLED_SECONDS
        line, number = read(), len(self.lines)
        while number < len(self._expected) and line != self._expected[number] and time.monotonic() < limit:
            time.sleep(_PAUSE_SECONDS)
            line = read()
        return line
