"""`sediment.broker()`: a broker for tests of Kafka clients, in this process."""

from __future__ import annotations

import os
import resource
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

import sediment
from sediment.segment_io.errors import UsageError
from sediment.server.open_files_limit import raised_open_files_limit
from tests.served import contents
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
        with pytest.raises(UsageError) as caught, sediment.broker(port=port):
            pass
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port, or leave it out to get a "
        "free one"
    )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_partition": 3}, "num_partition is not a broker key that this broker has; the nearest one is num_part"),
        ({"nonsense": 3}, "nonsense is not a broker key that this broker has; give Kafka's broker keys with under"),
        ({"num_partitions": "x"}, "num_partitions='x' is not a value that Kafka accepts; give a whole number of 32"),
        ({"num_partitions": 0}, "num_partitions=0 is not a value that Kafka accepts; give a whole number of 32 bits, "),
        ({"retention_ms": 5}, "retention_ms is a config of topics; give the broker's key, log_retention_ms, or set"),
        (
            {"remote_storage_enable": True},
            "remote_storage_enable is a config of topics; set it when you create a topic",
        ),
        ({"port": 65_536}, "port=65536 is not a port; give 0 to 65535"),
        ({"read_only": True}, "read_only needs the path of a log directory; give path"),
    ],
)
def test_errors_name_the_keywords_of_the_call(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught, sediment.broker(**keywords):
        pass
    assert str(caught.value).startswith(message)
    assert "--" not in str(caught.value)


def test_a_directory_may_be_served_without_writes(tmp_path: Path) -> None:
    with sediment.broker(tmp_path / "data") as broker:
        produce(broker.bootstrap, "t", b"a")
    before = contents(tmp_path)
    with sediment.broker(tmp_path / "data", read_only=True) as broker:
        assert consume(broker.bootstrap, "t", 1, "g") == [b"a"]
        with pytest.raises(KafkaError):
            produce(broker.bootstrap, "t", b"b")
    assert contents(tmp_path) == before


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

        def test_c(sediment_broker, sediment_new_broker):
            assert sediment_new_broker.bootstrap != sediment_broker.bootstrap
            test_c.path = sediment_new_broker.path

        def test_d(sediment_new_broker):
            assert sediment_new_broker.path != test_c.path and not test_c.path.exists()
        """
    )
    pytester.runpytest_inprocess("-p", "sediment.pytest_plugin").assert_outcomes(passed=4)


def test_a_conftest_gives_the_fixtures_their_broker_keys(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def sediment_broker_configs():
            return {"num_partitions": 3}
        """
    )
    pytester.makepyfile(
        """
        import pytest
        from kafka.admin import KafkaAdminClient, NewTopic

        @pytest.mark.parametrize("name", ["sediment_broker", "sediment_new_broker"])
        def test_topics(name, request):
            admin = KafkaAdminClient(bootstrap_servers=request.getfixturevalue(name).bootstrap)
            admin.create_topics([NewTopic("t")])
            (topic,) = admin.describe_topics(["t"])
            admin.close()
            assert len(topic["partitions"]) == 3
        """
    )
    pytester.runpytest_inprocess("-p", "sediment.pytest_plugin").assert_outcomes(passed=2)
