"""Sediment on directories that brokers of many releases wrote, and the same release on the result, with its clients.

Each release writes one cluster, which ends with kill -9.  Started again, it recovers by itself and stops cleanly.
Every test works on a copy of one of the two states.
"""

from __future__ import annotations

import json
import shutil
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.clone.features import REFERENCE_RELEASE
from tests.consumers import ISOLATIONS
from tests.jobs.log_dirs import Outcome, sediment
from tests.ports import free_port
from tests.served import serving
from tests.versions.looks import Look, Record, assert_same_latest
from tests.versions.node import Node, running
from tests.versions.outcomes import note_outcomes
from tests.versions.releases import RELEASES, Release
from tests.versions.workload import DELETE_RETENTION_MS, GROUPS, KEPT_MS, Topic, create_topics, topics_of, write

pytestmark = [pytest.mark.versions, pytest.mark.timeout(1800)]

INTERNAL = ("__consumer_offsets", "__transaction_state")
ERASED_KEY = "key-7"


@dataclass(frozen=True, slots=True)
class Written:
    """A cluster after kill -9, and after the next start and stop; `before` is what clients saw in between."""

    release: Release
    topics: list[Topic]
    killed: Node
    before: Look
    stopped: Node

    def names(self) -> list[str]:
        return [topic.name for topic in self.topics]

    def look(self, node: Node, *, bootstrap: str | None = None) -> Look:
        return node.look(self.names(), GROUPS, bootstrap=bootstrap)


@pytest.fixture(scope="module", params=RELEASES, ids=str)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    release: Release = request.param
    home = tmp_path_factory.mktemp(f"kafka-{release}")
    node, topics = Node(home / "killed", release), topics_of(release)
    if not release.with_zookeeper:
        node.format()
    with running(node):
        create_topics(node)
        write(node, 1, 2)
        node.describe_configs()
        node.kill()
    stopped = node.copy(home / "stopped")
    with running(stopped):
        before = stopped.look([topic.name for topic in topics], GROUPS)
    yield Written(release, topics, node, before, stopped)
    shutil.rmtree(home)
    note_outcomes(request, release)


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Node:
    """A copy of the cluster that was stopped."""
    return written.stopped.copy(tmp_path / "copy")


def run(command: str, node: Node, *more: object) -> Outcome:
    """Run a command on all directories of a node, as its owner does."""
    outcome = sediment(command, *settings_of(node), "--json", *more)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome


def settings_of(node: Node) -> list[object]:
    return ["--config", node.file, *node.config_options()]


def compacted(rows: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the topics of which a partition was compacted and became smaller."""
    return {
        name.rpartition("-")[0]
        for name, row in rows.items()
        if row["status"] == "compacted" and row["bytes_after"] < row["bytes_before"]
    }


def delete_horizons(partition: Path) -> list[int]:
    outcome = sediment("dump", partition, "--what", "batches", "--json", "--limit", "0", "--columns", "deleteHorizon")
    assert outcome.status == 0, outcome.stderr
    found = (json.loads(line)["deleteHorizon"] for line in outcome.stdout.splitlines())
    return [horizon for horizon in found if horizon is not None]


def divided(records: tuple[Record, ...]) -> tuple[list[Record], list[Record]]:
    """Return the records of the erased key, and the others."""
    key = b64encode(ERASED_KEY.encode()).decode()
    return [each for each in records if each.key == key], [each for each in records if each.key != key]


def assert_same_data(before: Look, after: Look) -> None:
    """Assert that consumers and groups see the same."""
    before, after = before.of_format_2(), after.of_format_2()
    assert after.ends == before.ends
    assert after.offsets == before.offsets
    for isolation in ISOLATIONS:
        differing = [name for name in before.ends if after.records[isolation][name] != before.records[isolation][name]]
        assert not differing


# -------------------------------------------------------------------------------------------------------------- stopped
def test_dump_shows_what_consumers_see(written: Written, copy: Node) -> None:
    for isolation in ISOLATIONS:
        seen: dict[str, list[int]] = {name: [] for name in written.before.ends}
        arguments = ("--what", "records", "--isolation", isolation, "--json", "--limit", "0")
        outcome = sediment("dump", *copy.log_dirs, *arguments, "--columns", "topic,partition,offset,control")
        assert outcome.status == 0, outcome.stderr
        for row in map(json.loads, outcome.stdout.splitlines()):
            name = f"{row['topic']}-{row['partition']}"
            if name in seen and not row["control"]:
                seen[name].append(row["offset"])
        expected = written.before.records[isolation]
        assert seen == {name: [record.offset for record in expected[name]] for name in seen}


def test_dump_decodes_every_record_of_the_metadata_log(written: Written) -> None:
    folders = list(written.stopped.home.glob("data-*/__cluster_metadata-0"))
    assert len(folders) == (not written.release.with_zookeeper)
    for folder in folders:
        outcome = sediment("dump", folder, "--what", "records", "--json", "--limit", "0")
        assert outcome.status == 0, outcome.stderr
        rows = [row for row in map(json.loads, outcome.stdout.splitlines()) if not row["control"]]
        assert {"TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD"} <= {row["value"]["type"] for row in rows}


def test_the_release_starts_on_a_compacted_directory(written: Written, copy: Node) -> None:
    whole = written.stopped.copy(copy.home.with_name("whole"))
    planned = run("plan", copy).partitions()
    rows = run("compact", copy, "--roll-active").partitions()
    wanted = {topic.name for topic in written.topics if topic.is_compacted}
    assert compacted(rows) == wanted | set(INTERNAL)
    assert {name.rpartition("-")[0] for name, row in planned.items() if row["status"] == "cleanable"} >= wanted
    for before, after in zip(whole.log_dirs, copy.log_dirs, strict=True):
        verified = sediment("verify", before, after, *settings_of(copy), "--json")
        assert verified.status == 0, verified.stdout + verified.stderr
    if written.release.has_dynamic_broker_configs:
        horizons_ms = delete_horizons(copy.partition("plain-0"))
        assert horizons_ms
        assert max(horizons_ms) <= time.time() * 1000 + DELETE_RETENTION_MS
    with running(copy):
        assert_same_latest(written.before, written.look(copy))
        write(copy, 4)


def test_the_release_starts_on_a_directory_that_was_erased_reencoded_and_expired(
    written: Written, copy: Node, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"{ERASED_KEY}\n")
    rows = run("erase", copy, "--keys-file", keys, "--yes").partitions()
    written_to = {name for topic in written.topics for name in topic.names()}
    assert {name for name, row in rows.items() if row["status"] == "erased"} == written_to
    codec = "zstd" if "zstd" in written.release.codecs else "lz4"
    rows = run("reencode", copy, "--codec", codec).partitions()
    assert {name for name, row in rows.items() if row["status"] == "reencoded"} >= {"plain-0", "events-0"}
    now_ms = int(time.time() * 1000) + KEPT_MS + 24 * 3600 * 1000
    rows = run("expire", copy, "--now-ms", now_ms).partitions()
    with running(copy):
        after = written.look(copy).of_format_2()

    before = written.before.of_format_2()
    expiring = {name for topic in written.topics if topic.expires for name in topic.names()}
    for name, (start, *ends) in after.ends.items():
        old_start, *old_ends = before.ends[name]
        assert ends == old_ends, name
        assert start == (rows[name]["log_start_offset"] if name in expiring else old_start)
        assert (start > old_start) == (name in expiring), name
        for isolation in ISOLATIONS:
            of_key, others = divided(after.records[isolation][name])
            wanted = [each for each in divided(before.records[isolation][name])[1] if each.offset >= start]
            assert others == wanted, name
            assert {each.value for each in of_key} <= {"null"}
    assert after.offsets == before.offsets


def test_the_clients_of_the_release_read_the_same_from_serve(written: Written, copy: Node) -> None:
    topic_configs = copy.config_options()[:2]
    with serving(*copy.log_dirs, "--read-only", "--config", copy.file, *topic_configs) as served:
        assert written.look(copy, bootstrap=served.bootstrap) == written.before


# --------------------------------------------------------------------------------------------------------------- killed
def test_recover_leaves_what_a_start_of_the_release_leaves(written: Written, tmp_path: Path) -> None:
    node = written.killed.copy(tmp_path / "copy")
    rows = run("recover", node).partitions()
    ends = {name: rows[name]["log_end_offset"] for name in written.before.ends}
    assert ends == {name: end for name, (_, end, _) in written.before.ends.items()}
    rows = run("compact", node).partitions()
    assert compacted(rows) == {topic.name for topic in written.topics if topic.is_compacted}
    with running(node):
        assert_same_latest(written.before, written.look(node))


# ----------------------------------------------------------------------------------------------------------- new nodes
def new_node(release: Release) -> tuple[Release, str]:
    """Return the release that starts on a clone, and the target version of the clone.

    The same release starts, or the newest one if the same one is too old to start on the directory of a new node.
    """
    if release.number < (4,):
        return RELEASES[-1], REFERENCE_RELEASE
    return release, ".".join(release.version.split(".")[:2])


def test_a_broker_starts_on_a_clone(written: Written, copy: Node, tmp_path: Path) -> None:
    to, (release, target) = tmp_path / "clone", new_node(written.release)
    arguments = ("--to", to, "--listen", f"127.0.0.1:{free_port()}", "--target-version", target)
    rows = run("clone", copy, *arguments).partitions()
    assert {row["status"] for row in rows.values()} == {"cloned"}
    clone = Node(tmp_path / "node", release, file=to / "server.properties")
    with running(clone):
        assert_same_data(written.before, written.look(clone))


def test_a_broker_starts_on_adopted_folders(written: Written, copy: Node, tmp_path: Path) -> None:
    folders, listen = tmp_path / "folders", f"127.0.0.1:{free_port()}"
    folders.mkdir()
    for topic in written.topics:
        for name in topic.names():
            shutil.copytree(copy.partition(name), folders / name)
    outcome = sediment("adopt", folders, "--yes", "--json", "--listen", listen, *copy.config_options()[:2])
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    assert {row["status"] for row in outcome.partitions().values()} == {"adopted"}
    node = Node(tmp_path / "node", RELEASES[-1], file=folders / "server.properties")
    with running(node):
        after = written.look(node)
    assert after.ends == written.before.ends
    assert after.of_format_2().records == written.before.of_format_2().records
