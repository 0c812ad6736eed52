"""A live server on directories that `kafka-storage.sh format` of Kafka 4.2.0 made (tests/data/formatted-nodes.tar.gz).

voters/data        a static quorum
standalone/data    a dynamic quorum, `--standalone`
three/data         a dynamic quorum, `--initial-controllers` with three voters
two/a, two/b       two entries of log.dirs; a format writes the same bootstrap.checkpoint into both
apart/data, meta   an entry of log.dirs, and a metadata.log.dir beside it
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sediment.jobs.serve import live_options
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.directories import configured_node_dirs
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import SettingsError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.clean_shutdown_file import (
    NEW_DIRECTORY,
    RAISED_EPOCHS,
    SERVED_NODE,
    CleanShutdown,
    read_clean_shutdown,
)
from sediment.segment_io.partition.formatted_directory import is_formatted
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.live.topic_rules import NewTopic
from sediment.server.network.endpoints import Endpoint
from tests.archives import unpack
from tests.served import contents

DELETE = (("cleanup.policy", "delete"), ("retention.ms", "3600000"))


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).parents[2] / "data" / "formatted-nodes.tar.gz") as archive:
        unpack(archive, tmp_path)
    return tmp_path


def properties(file: Path, log_dirs: Sequence[Path], more: str = "") -> Path:
    entries = ",".join(map(str, log_dirs))
    file.write_text(f"process.roles=broker,controller\nnode.id=1\nlog.dirs={entries}\n{more}")
    return file


@contextmanager
def serving(*directories: Path, config: Path | None = None) -> Iterator[KafkaServer]:
    """Serve the directories as the command does; without directories, those of the file."""
    settings = Settings.load(config, [])
    paths = directories or configured_node_dirs(settings, Fs())
    with KafkaServer(ServerOptions(live_options(paths, settings, Fs()), Endpoint("127.0.0.1", 0)), Fs()) as server:
        yield server


def create(server: KafkaServer, name: str) -> None:
    (outcome,) = server.backend.topics.create([NewTopic(name, 2, configs=DELETE)])
    assert not isinstance(outcome, Exception)


def policy_is_known(*log_dirs: Path, config: Path) -> bool:
    """Return True if a command that changes data takes the policy of the topic from the node's metadata.

    Raises:
        SettingsError: it refuses.
    """
    opened = open_directories(log_dirs, Selection(), RunSettings((Settings.load(config, []),)), Fs(), in_place=True)
    return all(each.settings.origin("t", "cleanup.policy") == Origin.METADATA for each in opened)


@pytest.mark.parametrize("quorum", ["voters", "standalone"])
@pytest.mark.parametrize("with_file", [False, True])
def test_a_formatted_node_has_retention_from_the_first_start(
    quorum: str, with_file: bool, nodes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = nodes / quorum / "data"
    config = properties(nodes / "s.properties", [data])
    formatted = {name: content for name, (_, _, content) in contents(data).items() if "cluster_metadata" in name}
    assert is_formatted(Fs(), data)
    with serving(data, config=config if with_file else None) as server:
        create(server, "t")
        assert server.deletions().startswith("retention: t;")
        assert read_clean_shutdown(Fs(), data) is None
    assert read_clean_shutdown(Fs(), data) == NEW_DIRECTORY
    with serving(data, config=config if with_file else None) as server:
        assert [topic.name for topic in server.catalog.topics()] == ["t"]
        assert server.deletions().startswith("retention: t;")
    assert policy_is_known(data, config=config)
    assert formatted.items() <= {name: content for name, (_, _, content) in contents(data).items()}.items()
    assert not caplog.messages


def test_a_formatted_node_of_several_voters_is_refused(nodes: Path) -> None:
    before = contents(nodes)
    with pytest.raises(UsageError, match="the metadata log lists nodes 1, 2"), serving(nodes / "three" / "data"):
        pass
    assert contents(nodes) == before


def test_after_a_kill_the_reason_is_the_stop_and_no_other(nodes: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = nodes / "voters" / "data"
    with serving(data) as server:
        create(server, "t")
    (data / ".kafka_cleanshutdown").unlink()
    for why in ("the last stop was not clean", "an earlier stop was not clean"):
        caplog.clear()
        with serving(data) as server:
            assert server.deletions().startswith("retention and the cleaner are off")
        assert f"a broker's configs, because {why}; retention" in caplog.text
        with pytest.raises(SettingsError) as caught:
            policy_is_known(data, config=properties(nodes / "s.properties", [data]))
        assert "bootstrap.checkpoint may be older than a broker's changes" in caught.value.what
        assert "start a broker on the directory and stop it" in str(caught.value.advice)
        assert "--config" not in str(caught.value.advice)  # it is given
        assert read_clean_shutdown(Fs(), data) == RAISED_EPOCHS


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_formatted_directories_the_one_that_a_broker_reads_gets_the_topics(order: str, nodes: Path) -> None:
    paths = {name: nodes / "two" / name for name in "ab"}
    config = properties(nodes / "s.properties", [paths[name] for name in order])
    unread = (paths[order[1]] / "bootstrap.checkpoint").read_bytes()
    for _ in range(2):
        with serving(paths["a"], paths["b"], config=config) as server:
            if server.catalog.topic("t") is None:
                create(server, "t")
            assert server.deletions().startswith("retention: t;")
    assert {read_clean_shutdown(Fs(), path) for path in paths.values()} == {SERVED_NODE}
    assert (paths[order[1]] / "bootstrap.checkpoint").read_bytes() == unread
    assert policy_is_known(*paths.values(), config=config)
    with serving(paths["a"], paths["b"]) as server:  # only one of the files has topics now
        assert server.catalog.topic("t") is not None
    (paths["b"] / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":7}')
    with pytest.raises(SettingsError, match="was not found"):
        policy_is_known(*paths.values(), config=config)


def test_two_formatted_directories_are_refused_unless_it_is_known_which_one_a_broker_reads(nodes: Path) -> None:
    before = contents(nodes)
    paths = nodes / "two" / "a", nodes / "two" / "b"
    with (
        pytest.raises(UsageError, match=r"both have a bootstrap\.checkpoint, and a broker reads only"),
        serving(*paths),
    ):
        pass
    config = properties(nodes / "s.properties", paths)
    with pytest.raises(UsageError, match=f"keeps its metadata in {paths[0]}"), serving(paths[1], config=config):
        pass
    config.unlink()
    assert contents(nodes) == before


def test_a_formatted_metadata_directory_of_its_own_gets_the_topics(nodes: Path) -> None:
    data, meta = nodes / "apart" / "data", nodes / "apart" / "meta"
    config = properties(nodes / "s.properties", [data], f"metadata.log.dir={meta}\n")
    with pytest.raises(UsageError, match=f"keeps its metadata in {meta}.*is in {data}"), serving(data, config=config):
        pass
    for _ in range(2):
        with serving(config=config) as server:
            if server.catalog.topic("t") is None:
                create(server, "t")
            assert server.deletions().startswith("retention: t;")
    assert sorted(path.name for path in data.glob("t-*")) == ["t-0", "t-1"]
    assert not list(meta.glob("t-*"))
    assert policy_is_known(data, config=config)


@pytest.mark.parametrize("name", [".lock", "t-0", "__cluster_metadata-0/00000000000000000000.log", "server.log"])
def test_a_directory_with_any_other_file_may_have_been_used(name: str, nodes: Path) -> None:
    data = nodes / "standalone" / "data"
    (data / name).touch()
    assert not is_formatted(Fs(), data)


def test_markers_of_nodes_without_a_broker_are_told_apart() -> None:
    assert NEW_DIRECTORY.is_without_broker and SERVED_NODE.is_without_broker
    assert not RAISED_EPOCHS.is_without_broker and not CleanShutdown(7).is_without_broker
