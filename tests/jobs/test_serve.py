"""`sediment serve` as a process: ready line, signals, exit statuses, JSON, metrics, and what it refuses."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from tests.jobs.log_dirs import sediment, sediment_process
from tests.served import contents, serving, unpacked
from tests.server.network.listeners import Client, api_versions
from tests.server.security.certificates import write_certificates
from tests.server.security.scram_users import credential, line, scram
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "data")


def connect(bootstrap: str, tls=None) -> Client:
    host, _, port = bootstrap.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=LIMIT_SECONDS)
    return Client(plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost"))


def start(*arguments: object, ignore_sigint: bool = False) -> subprocess.Popen[str]:
    """Start the command, as a shell does in the background if `ignore_sigint`, and return it once it is ready."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_sigint else signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sediment.jobs.cli", "serve", *map(str, arguments), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    for each in process.stderr:
        if "listening on" in each:
            return process
    raise AssertionError(f"serve ended with status {process.wait()}")


def test_a_new_node_is_made_on_request_and_used_by_later_starts(tmp_path):
    data, empty = tmp_path / "made" / "data", tmp_path / "empty"
    empty.mkdir()
    for path, what in ((data, "the directory does not exist"), (empty, "the directory is empty")):
        refused = sediment("serve", path)
        assert refused.status == 2
        assert f"{what} (file {path}); add --format to make it the directory of a new node" in refused.stderr
    assert not list(tmp_path.glob("**/meta.properties"))
    assert sediment("serve", empty, "--format", "--read-only").status == 2
    assert sediment("serve", empty, data, "--format").status == 2
    config = tmp_path / "server.properties"
    config.write_text(f"process.roles=broker,controller\nnode.id=5\nlog.dirs={data}\n")
    clusters = set()
    for number in range(2):
        with serving("--config", config, "--format") as served, connect(served.bootstrap) as client:
            made = [each for each in served.said if each.startswith(f"made {data} the log directory of node 5 in the")]
            assert len(made) == 1 - number
            answer = client.ask(m.DescribeClusterRequest(), 0)
            assert answer.controller_id == 5
            clusters.add(answer.cluster_id)
    assert len(clusters) == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [(("serve", "--port", 9092), "--listen"), (("serve", "--topic", "t"), "--partition")],
)
def test_an_option_by_the_name_of_another_program_is_refused_with_ours(words, hint):
    outcome = sediment(*words)
    assert outcome.status == 2
    assert f"No such option '{words[1]}'; use {hint}." in outcome.stderr


def test_a_server_serves_writes_nothing_and_stops_cleanly(directory, tmp_path):
    before = contents(directory)
    metrics, log = tmp_path / "metrics.prom", tmp_path / "requests.json"
    with serving(directory, "--read-only", "--metrics", metrics, "--request-log", log) as served:
        assert "serving 10 partitions of 6 topics, read-only, with PLAINTEXT" in served.said
        with connect(served.bootstrap) as client:
            response = client.ask(api_versions(), 4)
            assert {each.name: each.max_version_level for each in response.finalized_features}["transaction.version"]
            topics = {each.name for each in client.ask(m.MetadataRequest(topics=None), 12).topics}
    assert topics == {"__consumer_offsets", "__transaction_state", "empty", "orders", "payments", "prices"}
    assert contents(directory) == before
    assert 'requests_total{request="Metadata",version="12"} 1.0' in metrics.read_text()
    assert [json.loads(each)["request"] for each in log.read_text().splitlines()] == ["ApiVersions", "Metadata"]


def test_only_the_selected_partitions_are_served_and_groups_keep_their_offsets(directory):
    options = ("--partition", "orders-1", "--partition", "pr*", "--allow-empty-selection", "--partition", "none-*")
    with serving(directory, "--read-only", *options) as served, connect(served.bootstrap) as client:
        assert served.said[:2] == [
            "loading the log directories",
            "serving 2 partitions of 2 topics, read-only, with PLAINTEXT",
        ]
        topics = client.ask(m.MetadataRequest(topics=None), 12).topics
        found = {each.name: [partition.leader_id for partition in each.partitions] for each in topics}
        assert found == {"orders": [-1, 1], "prices": [1]}
        wait_until(lambda: _offset(client, "billing") is not None)
        assert _offset(client, "billing") == 5


def test_the_metadata_log_may_lie_in_another_directory(directory, tmp_path):
    copy = unpacked(tmp_path / "data")
    (tmp_path / "metadata").mkdir()
    (copy / "__cluster_metadata-0").rename(tmp_path / "metadata" / "__cluster_metadata-0")
    with (
        serving(directory, "--read-only") as whole,
        serving(copy, "--read-only", "--metadata", tmp_path / "metadata") as split,
    ):
        ids = []
        for server in (whole, split):
            with connect(server.bootstrap) as client:
                topics = client.ask(m.MetadataRequest(topics=None), 12).topics
                ids.append({each.name: each.topic_id for each in topics})
        assert ids[0] == ids[1]


def test_a_server_that_was_started_in_the_background_stops_on_sigint_and_prints_its_json(directory):
    process = start(directory, "--read-only", "--json", "--quiet", ignore_sigint=True)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, stderr) == (0, "")
    report = json.loads(stdout)
    assert (report["schema"], report["command"], report["security_protocol"]) == (1, "serve", "PLAINTEXT")
    assert {"run_id", "now_ms", "seconds", "listening", "requests", "response_bytes"} <= report.keys()
    assert report["partitions"][0] == {
        "partition": "__consumer_offsets-0",
        "node_id": 1,
        "log_dir": str(directory),
        "status": "served",
        "reason_code": None,
        "reason": None,
        "unreadable_ranges": 0,
    }


def test_the_json_names_the_partitions_that_are_not_served(tmp_path):
    copy = unpacked(tmp_path / "data")
    (copy / "orders-0" / f"{0:020}.log.swap").write_bytes(b"not a batch" * 20)
    process = start(copy, "--read-only", "--json", "--quiet")
    shutil.rmtree(copy / "orders-1")
    with connect(f"127.0.0.1:{_listening_port(process.pid)}") as client:
        request = m.ListOffsetsRequest
        asked = [request.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in (0, 1)]
        topic = request.ListOffsetsTopic(name="orders", partitions=asked)
        client.ask(request(replica_id=-1, topics=[topic]), 5)
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=LIMIT_SECONDS)
    rows = {each["partition"]: each for each in json.loads(stdout)["partitions"]}
    assert len(rows) == 10
    assert rows["prices-0"]["status"] == "served"
    skipped, quarantined = rows["orders-0"], rows["orders-1"]
    assert (skipped["status"], skipped["log_dir"], skipped["reason_code"]) == ("skipped", str(copy), "corrupt-batch")
    assert f"{0:020}.log.swap" in skipped["reason"]
    assert (quarantined["status"], quarantined["reason_code"]) == ("quarantined", "storage")
    assert "the log cannot be read" in quarantined["reason"]


def test_a_server_whose_stderr_is_full_serves(directory):
    command = [sys.executable, "-m", "sediment.jobs.cli", "serve", directory, "--read-only", "--listen", "127.0.0.1:0"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stderr=full)
    try:
        wait_until(lambda: process.poll() is not None or _listens(process.pid))
        with connect(f"127.0.0.1:{_listening_port(process.pid)}") as client:
            assert client.ask(api_versions(), 3).error_code == 0
    finally:
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0


def test_a_second_signal_ends_the_process_at_once(directory):
    process = start(directory, "--read-only")
    os.kill(process.pid, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(LIMIT_SECONDS) in (1, -signal.SIGINT, -signal.SIGTERM)


def test_a_stop_does_not_wait_for_a_fetch_that_waits_for_records(directory):
    process = start(directory, "--read-only", "--json", "--log-format", "json")
    with connect(f"127.0.0.1:{_listening_port(process.pid)}") as client:
        request = m.FetchRequest
        partition = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        topic = request.FetchTopic(topic="empty", partitions=[partition])
        client.send(request(max_wait_ms=1_000_000, min_bytes=1, topics=[topic]), 12)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert json.loads(stdout)["seconds"] < 900
    for each in stderr.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(each).keys()


def _listens(pid: int) -> bool:
    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).net_connections("tcp"))


def _listening_port(pid: int) -> int:
    return next(
        each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.status == psutil.CONN_LISTEN
    )


def test_tls_and_users_of_a_file(directory, tmp_path):
    files = write_certificates(tmp_path)
    users = tmp_path / "users"
    users.write_text(line("alice", "SCRAM-SHA-256", credential("alice-secret")))
    options = ("--read-only", "--tls-cert", files.certificate, "--tls-key", files.key, "--users", users)
    with serving(directory, *options, "--advertise", "kafka.example:9093") as served:
        assert "clients connect to kafka.example:9093" in served.said
        with connect(served.bootstrap, files.client_context()) as client:
            assert scram(client, "alice", "alice-secret")[1].error_code == 0
            (broker,) = client.ask(m.MetadataRequest(topics=[]), 12).brokers
            assert (broker.host, broker.port) == ("kafka.example", 9093)


def test_committed_offsets_stay_in_a_state_directory(directory, tmp_path):
    commit = m.OffsetCommitRequest
    request = commit(
        group_id="reporting",
        topics=[
            commit.OffsetCommitRequestTopic(
                name="orders",
                partitions=[commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)],
            )
        ],
    )
    for ask in (True, False):
        with (
            serving(directory, "--read-only", "--state", tmp_path / "state") as served,
            connect(served.bootstrap) as client,
        ):
            wait_until(lambda client=client: _offset(client, "billing") is not None)
            if ask:
                assert client.ask(request, 8).topics[0].partitions[0].error_code == 0
            else:
                assert _offset(client, "reporting") == 7


def _offset(client: Client, group: str) -> int | None:
    fetch = m.OffsetFetchRequest
    topic = fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    response = client.ask(fetch(group_id=group, topics=[topic]), 7)
    return None if response.error_code else response.topics[0].partitions[0].committed_offset


def test_the_command_does_not_load_spark():
    code = "import sys, sediment.jobs.serve; print([name for name in sys.modules if name.startswith('pyspark')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_read_only_server_loads_no_code_of_a_node_that_writes() -> None:
    code = "import sys, sediment.jobs.serve; print(sorted(name for name in sys.modules if name.startswith(%r)))"
    writers = ("sediment.engine.clone", "sediment.engine.live.log_manager", "sediment.server.live")
    done = subprocess.run([sys.executable, "-c", code % (writers,)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


WRONG_USE = {
    "flush acks": (["--flush-acks"], "--flush-acks needs a server that accepts writes; leave out"),
    "no such partition": (["--partition", "order-*"], "--partition 'order-*' matches no partition of"),
    "no metadata": (["--metadata", "/tmp"], "--metadata /tmp does not contain __cluster_metadata-0"),
    "another address": (["--listen", "192.0.2.7:0"], "other machines can reach"),
    "wildcard": (["--listen", "0.0.0.0:0", "--insecure"], "--advertise HOST:PORT"),
    "malformed address": (["--listen", "9092"], "--listen '9092' is not HOST:PORT"),
    "certificate without key": (["--tls-cert", "/dev/null"], "--tls-cert and --tls-key must be given together"),
    "no users": (["--users", "/dev/null"], "--users cannot be read: it is neither a file nor a pipe"),
    "renaming": (["--as", "a"], "--as"),
    "unknown key": (["--set", "num.io.thread=3"], "the nearest known key is num.io.threads"),
    "value": (["--set", "num.io.threads=0"], "num.io.threads"),
    "contradiction": (["--set", "queued.max.request.bytes=5"], "queued.max.request.bytes is 5, less than"),
    "unknown host": (["--listen", "no.such.host.invalid:0"], "has no address: "),
    "state below a file": (["--state", "/dev/null/state"], "--state cannot be used: not a directory"),
    "request log in no directory": (["--listen", "127.0.0.1:0", "--request-log", "/proc/none"], "--request-log cannot"),
    "garbage for a certificate": (
        ["--tls-cert", __file__, "--tls-key", __file__],
        "certificate and key cannot be used: not in PEM",
    ),
    "metrics in a missing directory": (["--metrics", "/no/such/file"], "--metrics cannot be written"),
}


@pytest.mark.parametrize(("options", "said"), WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_refused_before_anything_listens(options, said, directory):
    outcome = sediment("serve", directory, "--read-only", *options)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    assert "Errno" not in outcome.stderr and "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    "option", [("--state", "s"), ("--partition", "orders-0"), ("--metadata", "m"), ("--to-log-end",), ("--as", "a=b")]
)
def test_a_view_of_a_directory_cannot_take_writes(option, directory):
    before = contents(directory)
    outcome = sediment("serve", directory, *option)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert f"{option[0]} needs --read-only; give --read-only, or leave out {option[0]}" in outcome.stderr
    assert contents(directory) == before


def test_directories_that_cannot_be_served_are_refused(directory, tmp_path):
    for arguments, said in (
        ([], "no LOG_DIR is given"),
        ([tmp_path / "absent"], "no such directory"),
        ([tmp_path], "not a Kafka log directory"),
        ([directory, "--state", directory / "state"], "is inside the log directory"),
        ([directory, "--request-log", directory / "log"], "--request-log must not be inside a log directory"),
    ):
        outcome = sediment("serve", *arguments, "--read-only", "--listen", "127.0.0.1:0")
        assert (outcome.status, outcome.stdout) == (2, ""), outcome.stderr
        assert said in outcome.stderr


def test_an_address_in_use_is_refused(directory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = sediment("serve", directory, "--read-only", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert outcome.status == 2
    assert "Address already in use" in outcome.stderr


@pytest.mark.parametrize("mode", [("--read-only",), ()])
@pytest.mark.parametrize(
    ("options", "said"), [((), "Address already in use"), (("--listen", "0.0.0.0:0"), "other machines can reach")]
)
def test_a_wrong_address_is_refused_before_a_directory_is_opened(mode, options, said, tmp_path):
    absent = tmp_path / "absent"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = options or ("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        outcome = sediment("serve", absent, *mode, *given)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    assert not absent.exists()


def test_a_directory_in_use_is_refused(tmp_path):
    copy = unpacked(tmp_path / "data")
    with (copy / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        outcome = sediment_process("serve", copy, "--read-only", "--listen", "127.0.0.1:0")
    assert outcome.status == 1
    assert "uses this log directory" in outcome.stderr


def test_the_directories_and_sizes_may_come_from_the_brokers_file(directory, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nlog.dirs={directory}\nnum.network.threads=1\nconnections.max.idle.ms=-1\n")
    process = start("--read-only", "--config", file)
    try:
        with connect(f"127.0.0.1:{_listening_port(process.pid)}") as client:
            assert client.ask(api_versions(), 3).error_code == 0
            client.send(m.MetadataRequest(), 12)
            assert client.receive(ApiKey.METADATA, 12)[1].cluster_id
    finally:
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
