"""Log directories of a single node, and a live server over them in this process."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sediment.engine.clone.cluster_records import CloneNode, cluster_records
from sediment.engine.clone.features import REFERENCE_RELEASE, clone_features
from sediment.engine.clone.plan import ClonedTopic
from sediment.engine.log_config import LogConfig
from sediment.jobs.serve import live_options as stated_options
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live import LiveBackend
from sediment.server.backends.live_options import LiveOptions
from sediment.server.delayed import Timer
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.server_config import ServerConfig
from tests.engine.live_logs import config
from tests.server.network.listeners import Client
from tests.waiting import LIMIT_SECONDS

NODE = CloneNode(7, format_uuid(bytes(range(16))), format_uuid(bytes(range(1, 17))))
CONFIG = config(segment_bytes=1 << 20)
NOW_MS = 1_700_000_000_000


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def new_node(
    path: Path,
    topics: Mapping[str, int],
    *,
    next_producer_id: int = 0,
    leader_epochs: Mapping[TopicPartition, int] = MappingProxyType({}),
    features: Mapping[str, int] = MappingProxyType({}),
) -> Path:
    """Make the directory of a node that was never started, with `topics` by their number of partitions.

    `features` are levels that differ from those of Kafka's newest release.
    """
    path.mkdir(parents=True)
    made = [
        ClonedTopic(name, name, format_uuid(topic_id(name).bytes), True, count, (), {}, ())
        for name, count in topics.items()
    ]
    values = list(
        cluster_records(
            made, leader_epochs, NODE, clone_features(None, REFERENCE_RELEASE) | dict(features), {}, next_producer_id
        )
    )
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
    meta = MetaProperties(1, NODE.cluster_id, NODE.node_id, NODE.directory_id)
    (path / "meta.properties").write_bytes(format_meta_properties(meta))
    (path / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    return path


def two_directories(path: Path) -> tuple[Path, Path]:
    """Make the two directories of a node that was never started: t-0 is in the first one, t-1 in the second one."""
    first, second = new_node(path / "a", {"t": 2}), path / "b"
    second.mkdir()
    text = (first / "meta.properties").read_text().replace(NODE.directory_id, format_uuid(bytes(16)[:-1] + b"\2"))
    (second / "meta.properties").write_text(text)
    for partition in (first / "t-0", second / "t-1"):
        partition.mkdir()
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(topic_id('t').bytes)}\n")
    return first, second


@dataclass
class LiveServer:
    """A running server in this process."""

    server: KafkaServer

    def connect(self) -> Client:
        return Client.to(self.server.bound.port)

    @property
    def bootstrap(self) -> str:
        return str(self.server.bound)


def live_options(
    *directories: Path,
    topic_config: Callable[[str], LogConfig] | None = None,
    flush_acks: bool = False,
    quorum: Mapping[str, str] | None = None,
) -> LiveOptions:
    """Return the options of a live server; without `topic_config`, the metadata states the configs of topics.

    Records have old timestamps, so `topic_config` has no effect on retention.
    """

    def configs(metadata: ClusterMetadata, node_id: int) -> Callable[[str], LogConfig]:
        if topic_config is None:
            return Settings.load(None, []).of_node(metadata, node_id).for_topic
        return lambda topic: _kept(topic_config(topic))

    return LiveOptions(directories, configs, quorum, flush_acks)


def _kept(config: LogConfig) -> LogConfig:
    return replace(config, retention=replace(config.retention, retention_ms=-1, retention_bytes=-1))


@contextlib.contextmanager
def live(
    *directories: Path,
    topic_config: Callable[[str], LogConfig] | None = lambda _: CONFIG,
    flush_acks: bool = False,
    fs: Fs | None = None,
    quorum: Mapping[str, str] | None = None,
    stated: Mapping[str, Any] = MappingProxyType({}),
    **keys: Any,
) -> Iterator[LiveServer]:
    """Serve directories for reads and writes until the end of the block.

    Without `topic_config`, the metadata states the configs of topics.  `stated` are keys of the broker.
    """
    of_backend = live_options(*directories, topic_config=topic_config, flush_acks=flush_acks, quorum=quorum)
    options = ServerOptions(
        replace(of_backend, broker_values=lambda _metadata, _node_id: stated),
        Endpoint("127.0.0.1", 0),
        config=ServerConfig(**keys),
    )
    with KafkaServer(options, fs or Fs()) as server:
        yield LiveServer(server)


@contextlib.contextmanager
def opened(
    *directories: Path,
    topic_config: Callable[[str], LogConfig] | None = lambda _: CONFIG,
    fs: Fs | None = None,
    **options: Any,
) -> Iterator[LiveBackend]:
    """Open the logs of a server without its sockets; `options` are those of LiveOptions."""
    live = replace(live_options(*directories, topic_config=topic_config), **options)
    backend = LiveBackend(live, fs or Fs(), threading.Event())
    timer = Timer(name=None)
    backend.handlers(timer, ServerConfig(), GroupCoordinator(ServerConfig(), timer, time.monotonic_ns))
    try:
        yield backend
    finally:
        backend.close()


# ------------------------------------------------------------------------------------------------------------- requests
def commit_request(group: str, topic: str, offset: int) -> Any:
    """Return a request of version 8 that commits an offset of partition 0."""
    request = m.OffsetCommitRequest
    partitions = [request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    return request(group_id=group, topics=[request.OffsetCommitRequestTopic(name=topic, partitions=partitions)])


def commit(client: Client, group: str, offset: int, *, topic: str = "t") -> ErrorCode:
    """Commit an offset of partition 0 of a topic, as soon as the groups are loaded."""
    while True:
        response = client.ask(commit_request(group, topic, offset), 8)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return code


def produce_request(
    records: bytes | None,
    *,
    topic: str = "t",
    number: int = 0,
    acks: int = -1,
    version: int = 13,
    timeout_ms: int = 10_000,
    asked_id: uuid.UUID | None = None,
) -> Any:
    request = m.ProduceRequest
    by_id = version >= 13
    return request(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            request.TopicProduceData(
                name="" if by_id else topic,
                topic_id=(asked_id or topic_id(topic)) if by_id else uuid.UUID(int=0),
                partition_data=[request.PartitionProduceData(index=number, records=records)],
            )
        ],
    )


def produce(client: Client, records: bytes | None, *, version: int = 13, **fields: Any) -> Any:
    """Return the answer for the only partition."""
    response = client.ask(produce_request(records, version=version, **fields), version)
    ((answer,),) = (topic.partition_responses for topic in response.responses)
    return answer


def fetch_request(
    *partitions: tuple[int, int], topic: str = "t", min_bytes: int = 1, max_wait_ms: int = 0, isolation: int = 0
) -> Any:
    """Return a request of version 13 for (partition, offset) pairs of a topic."""
    request = m.FetchRequest
    return request(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[
            request.FetchTopic(
                topic_id=topic_id(topic),
                partitions=[
                    request.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
                    for number, offset in partitions
                ],
            )
        ],
    )


def fetch(client: Client, *partitions: tuple[int, int], **fields: Any) -> list[Any]:
    """Return the answers of (partition, offset) pairs."""
    (topic,) = client.ask(fetch_request(*partitions, **fields), 13).responses
    return list(topic.partitions)


class SlowDisk(Fs):
    """A disk whose syncs of `.log` files wait while it is slow, are counted, and raise its `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_fast = threading.Event()
        self.is_fast.set()
        self.syncs = 0

    def _open(self, path: Path, *, create: bool) -> OpenFile:
        disk = self

        class File(OpenFile):
            def sync(self) -> None:
                if self.path.suffix == ".log":
                    assert disk.is_fast.wait(LIMIT_SECONDS)
                    disk.syncs += 1
                    if disk.error is not None:
                        raise disk.error
                super().sync()

        return File(path, create=create)

    def open_file(self, path: Path) -> OpenFile:
        return self._open(path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        made = self._open(path, create=True)
        self.adopt_owner(path, like)
        return made


def options_of(
    *directories: Path, sets: Sequence[str] = (), config: Path | None = None, threads: int = 0, **values: Any
) -> LiveOptions:
    """Return the options that the command line makes; without threads, a test runs the background tasks."""
    options = stated_options(directories, Settings.load(config, list(sets)), Fs())

    def stated(metadata: Any, node_id: int) -> Mapping[str, Any]:
        return {**options.broker_values(metadata, node_id), "background.threads": threads, **values}

    return replace(options, broker_values=stated)
