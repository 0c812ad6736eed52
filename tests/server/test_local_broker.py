"""`sediment.broker()`: a broker for tests of Kafka clients, in this process."""

from __future__ import annotations

import os
import resource
import socket
import tomllib
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

import sediment
from sediment.segment_io.errors import SettingsError
from sediment.server.open_files_limit import raised_open_files_limit
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]
TIMES = {"request_timeout_ms": int(LIMIT_SECONDS * 1000)}


def produce(bootstrap: str, topic: str, *values: bytes) -> list[int]:
    """Send values, and return their offsets."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    offsets = [producer.send(topic, value).get(LIMIT_SECONDS).offset for value in values]
    producer.close()
    return offsets


def consume(bootstrap: str, topic: str, count: int, group: str) -> list[bytes]:
    """Return `count` values from where the group is, and commit."""
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    found = [next(consumer).value for _ in range(count)]
    consumer.commit()
    consumer.close()
    return found


def test_clients_use_a_new_broker_at_once_and_nothing_is_left_of_it() -> None:
    with sediment.broker(num_partitions=2) as broker:
        assert produce(broker.bootstrap, "made-by-the-producer", b"a") == [0]
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([NewTopic("one", 1, 1)])
        (described,) = admin.describe_topics(["made-by-the-producer"])
        assert len(described["partitions"]) == 2
        admin.close()
        assert produce(broker.bootstrap, "one", b"a", b"b", b"c") == [0, 1, 2]
        assert consume(broker.bootstrap, "one", 2, "g") == [b"a", b"b"]
        assert (broker.path / "one-0").is_dir()
    assert not broker.path.exists()


def test_a_directory_keeps_topics_records_and_offsets(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with sediment.broker(path) as broker:
        produce(broker.bootstrap, "t", b"a", b"b")
        assert consume(broker.bootstrap, "t", 1, "g") == [b"a"]
    with sediment.broker(path) as broker:
        assert produce(broker.bootstrap, "t", b"c") == [2]
        assert consume(broker.bootstrap, "t", 2, "g") == [b"b", b"c"]


def test_a_port_may_be_chosen_and_wrong_keys_are_refused() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with sediment.broker(port=port) as broker:
        assert broker.bootstrap == f"127.0.0.1:{port}"
    with pytest.raises(SettingsError, match="nonsense"), sediment.broker(nonsense=1):
        pass


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sediment.broker("data") as broker:
        assert broker.path == tmp_path / "data"
        monkeypatch.chdir("/")
        produce(broker.bootstrap, "t", b"a")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_that_leaves_the_block_does_not_stop_the_broker() -> None:
    running = sediment.broker()
    with running as broker:
        child = os.fork()
        if not child:
            status = 1
            try:
                running.__exit__(None, None, None)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert produce(broker.bootstrap, "t", b"a") == [0]
    assert not broker.path.exists()


def test_the_limit_of_open_files_is_restored_after_the_last_broker() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = (min(1500, before[1]), before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, low)
    try:
        with raised_open_files_limit(1):
            with raised_open_files_limit(1):
                raised = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
        assert raised[0] > low[0] or raised[0] == low[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_limit_of_open_files_that_cannot_be_raised_is_raised_and_restored_by_a_later_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_resource: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = (min(1500, before[1]), before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, low)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(resource, "setrlimit", fail)
            with pytest.raises(ValueError, match="not allowed"), raised_open_files_limit(1):
                pass
        with raised_open_files_limit(1):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) != low
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_topics_are_not_created_automatically_if_this_is_switched_off() -> None:
    with sediment.broker(auto_create_topics_enable=False) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, max_block_ms=300)
        with pytest.raises(Exception, match="metadata"):
            producer.send("t", b"v")
        producer.close()
        assert not (broker.path / "t-0").exists()


def test_the_fixture_of_the_plugin_is_a_broker(pytester: pytest.Pytester) -> None:
    # An installation with this plugin, so that pytest finds it by both ways.
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = pytester.mkdir("installed-1.dist-info")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    lines = [f"{name} = {module}\n" for name, module in plugins.items()]
    (installed / "entry_points.txt").write_text("".join(["[pytest11]\n", *lines]))
    pytester.syspathinsert()
    pytester.makepyfile(
        """
        def test_a(sediment_broker):
            test_a.bootstrap = sediment_broker.bootstrap

        def test_b(sediment_broker):
            assert sediment_broker.bootstrap == test_a.bootstrap
        """
    )
    pytester.runpytest_inprocess("-p", "sediment.pytest_plugin").assert_outcomes(passed=2)
