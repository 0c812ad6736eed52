"""Crashes while a topic is created or deleted: the next start has the topic or does not, and never a stray folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_records, read_cluster_metadata
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.server.backends.live import LiveBackend
from sediment.server.live.topic_rules import NewTopic
from sediment.server.live.topic_store import CreatedTopic
from tests.engine.live_logs import batch, config
from tests.faults.fs_trace import Crash, CrashImage, FsTrace, Tree, read_tree, write_tree
from tests.faults.matrix import sampled_by_crash
from tests.served import unpacked
from tests.server.live import nodes
from tests.server.live.nodes import new_node

PARTITIONS = 2
SMALL_FILES = config(segment_bytes=1 << 20)
METADATA_LOG = f"__cluster_metadata-0/{0:020d}.log"


@pytest.fixture(autouse=True)
def small_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve small indexes for the metadata log too, because each image holds every file."""
    writer = "sediment.engine.metadata.metadata_log_writer"
    monkeypatch.setattr(f"{writer}._CONFIG", config(max_message_bytes=INT32_MAX, segment_ms=INT64_MAX))


def opened(path: Path) -> AbstractContextManager[LiveBackend]:
    """Open the logs of a server with small files."""
    return nodes.opened(path, topic_config=lambda _: SMALL_FILES)


def create(backend: LiveBackend) -> None:
    (made,) = backend.topics.create([NewTopic("new", PARTITIONS, configs=(("retention.ms", "5"),))])
    assert isinstance(made, CreatedTopic)


def delete(backend: LiveBackend) -> None:
    topic = backend.catalog.topic("new")
    assert topic is not None
    backend.topics.delete({"new": topic.id})


def node(path: Path, *, is_started: bool, has_topic: bool) -> Path:
    """Make a node, with a topic of two records or without."""
    path = unpacked(path) if is_started else new_node(path, {"t": 1})
    if has_topic:
        with opened(path) as backend:
            create(backend)
            partition = backend.catalog.partition("new", 0)
            assert partition is not None
            partition.append(batch(("a", "1"), ("b", "2")))
    return path


def images(path: Path, change: Callable[[LiveBackend], None], *, is_started: bool) -> tuple[list[CrashImage], Tree]:
    """Return the files after a crash at each step of a change, and those after the change."""
    with opened(path) as backend:
        with FsTrace(path, records=True) as trace:
            change(backend)
        after = read_tree(path)
    # The metadata log is written past the trace, so what a power loss leaves of it is unknown.
    found = [image for image in trace.images if not is_started or image.crash is Crash.KILLED]
    return found, after


def chosen(found: list[CrashImage]) -> list[CrashImage]:
    """Return the first images, before the change is durable, and a sample of all."""
    return [*found[:4], *sampled_by_crash(found, 3)]


def has_topic(tree: Tree, path: Path, others: set[str]) -> bool:
    """Start a server on the files; return True if the topic is there, after checking that it is whole or gone."""
    write_tree(path, tree)
    with opened(path) as backend:
        topics = {topic.name: topic for topic in backend.catalog.topics()}
        topic = topics.get("new")
        assert topics.keys() - {"new"} == others
        # What the creation or deletion has left is removed after the delay.
        assert set(path.glob("*-delete")) <= {deleted.folder for deleted in backend._manager._state.deleted}
        if topic is not None:
            assert sorted(topic.partitions) == list(range(PARTITIONS))
            assert topic.configs == {"retention.ms": "5"}
            for number, partition in topic.partitions.items():
                end = partition.high_watermark
                assert partition.append(batch(("k", "v"))).first_offset == end
                assert partition.topic_partition == TopicPartition("new", number)
    metadata = read_cluster_metadata(path, Fs()) or read_bootstrap_records(path, Fs())
    assert metadata is not None
    for folder in path.glob("new-?"):
        assert read_partition_metadata(Fs(), folder / "partition.metadata") == metadata.topic_ids["new"]
    if topic is not None:
        assert not list(path.glob("*-stray"))
    return topic is not None


@pytest.mark.parametrize("is_started", [False, True], ids=["bootstrap", "log"])
def test_a_crash_during_a_creation_leaves_the_topic_or_none(tmp_path: Path, is_started: bool) -> None:
    path = node(tmp_path / "data", is_started=is_started, has_topic=False)
    with opened(path) as backend:
        others = {topic.name for topic in backend.catalog.topics()}
    found, after = images(path, create, is_started=is_started)
    outcomes = {
        has_topic(image.tree, tmp_path / f"image-{number}", others) for number, image in enumerate(chosen(found))
    }
    # The write to the metadata log is not traced, and only a task in the background makes a step before it.
    assert outcomes >= ({True} if is_started else {False, True})
    assert has_topic(after, tmp_path / "after", others)
    assert not list(tmp_path.glob("*/*-stray"))


def test_a_creation_whose_records_are_not_all_written_leaves_no_topic(tmp_path: Path) -> None:
    path = node(tmp_path / "data", is_started=True, has_topic=False)
    before = read_tree(path)
    with opened(path) as backend:
        others = {topic.name for topic in backend.catalog.topics()}
        create(backend)
        written, mtime_ns = read_tree(path)[METADATA_LOG]
    size = len(before[METADATA_LOG][0])
    for number, end in enumerate((size + 1, (size + len(written)) // 2, len(written) - 1)):
        tree = {**before, METADATA_LOG: (written[:end], mtime_ns)}
        assert not has_topic(tree, tmp_path / f"cut-{number}", others)


@pytest.mark.parametrize("is_started", [False, True], ids=["bootstrap", "log"])
def test_a_crash_during_a_deletion_leaves_the_topic_or_none(tmp_path: Path, is_started: bool) -> None:
    path = node(tmp_path / "data", is_started=is_started, has_topic=True)
    with opened(path) as backend:
        others = {topic.name for topic in backend.catalog.topics()} - {"new"}
    found, after = images(path, delete, is_started=is_started)
    for number, image in enumerate(chosen(found)):
        copy = tmp_path / f"image-{number}"
        if has_topic(image.tree, copy, others):
            assert (copy / "new-0" / f"{0:020d}.log").stat().st_size > 0
        else:
            assert [each.name for each in copy.glob("new-?")] == []
    assert not has_topic(after, tmp_path / "after", others)
