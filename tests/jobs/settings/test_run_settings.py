"""Several `--config` files in one run, and the `--topic-configs` and `--broker-configs` that belong to each of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings, load_run_settings
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.meta_properties import MetaProperties
from tests.jobs.expiring.expired_logs import bases, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.segments import NOW_MS

OLD_MS = NOW_MS - 30 * 86_400_000
POLICIES = {"kept": {}, "short": {"retention.ms": "1000"}}


def properties(tmp_path: Path, node_id: int, *log_dirs: Path, more: str = "") -> Path:
    path = tmp_path / f"{node_id}.properties"
    names = ",".join(map(str, log_dirs))
    path.write_text(f"broker.id={node_id}\nzookeeper.connect=zk:2181\nlog.dirs={names}\n{more}")
    return path


def described(tmp_path: Path, name: str, configs: object) -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(configs))
    return path


def loaded(*configs: Path, topics: tuple[Path, ...] = (), brokers: tuple[Path, ...] = ()) -> RunSettings:
    return load_run_settings(configs, (), topic_configs=topics, broker_configs=brokers)


def refusal(*configs: Path, topics: tuple[Path, ...] = (), brokers: tuple[Path, ...] = ()) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(*configs, topics=topics, brokers=brokers)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------- files of the nodes
def test_every_file_is_of_another_node_and_names_other_directories(tmp_path: Path) -> None:
    one, two = (
        properties(tmp_path, 1, tmp_path / "a"),
        properties(tmp_path, 2, tmp_path / "b", tmp_path / "x" / ".." / "a"),
    )
    assert "two --config files are of node 1" in refusal(one, one)
    assert "two --config files name the same log directory" in refusal(one, two)
    three = properties(tmp_path, 3, tmp_path / "c")
    assert [node.node_id for node in loaded(one, three).nodes] == [1, 3]
    assert loaded(one, three).log_dirs() == (tmp_path / "a", tmp_path / "c")
    assert loaded(one).log_dirs() == (tmp_path / "a",)


def test_a_node_without_log_dirs_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    one, two = properties(tmp_path, 1, tmp_path / "a"), tmp_path / "two.properties"
    two.write_text("broker.id=2\n")
    with pytest.raises(UsageError, match="no LOG_DIR is given for node 2"):
        loaded(one, two).log_dirs()


def test_a_directory_has_the_settings_of_the_file_that_names_it_or_its_node(tmp_path: Path) -> None:
    settings = loaded(properties(tmp_path, 1, tmp_path / "a"), properties(tmp_path, 2, tmp_path / "b"))
    assert settings.of_directory(tmp_path / "b", None).node_id == 2
    copied = MetaProperties(0, "c", 1, None)
    assert settings.of_directory(tmp_path / "copy", copied).node_id == 1
    for meta in (None, MetaProperties(0, "c", 3, None), MetaProperties(0, "c", None, None)):
        with pytest.raises(UsageError, match="none of the --config files"):
            settings.of_directory(tmp_path / "copy", meta)
    with pytest.raises(UsageError, match="--config is the file of node 2, and this is a directory of node 1"):
        settings.of_directory(tmp_path / "b", copied)
    only = RunSettings((Settings(),))
    assert only.of_directory(tmp_path / "copy", copied) is only.nodes[0]


def test_the_files_about_topics_belong_to_the_config_in_the_same_place_or_to_all(tmp_path: Path) -> None:
    one, two = properties(tmp_path, 1, tmp_path / "a"), properties(tmp_path, 2, tmp_path / "b")
    topics = [described(tmp_path, f"topics{number}", {f"t{number}": {}}) for number in (1, 2)]
    brokers = described(tmp_path, "brokers", {"default": {"log.retention.ms": 5}, "2": {"log.retention.ms": 6}})
    by_order = [node.of_described_node(node.node_id) for node in loaded(one, two, topics=(*topics,)).nodes]
    assert [node.listed_topics for node in by_order] == [{"t1"}, {"t2"}]
    shared = [
        node.of_described_node(node.node_id) for node in loaded(one, two, topics=(topics[0],), brokers=(brokers,)).nodes
    ]
    assert [node.listed_topics for node in shared] == [{"t1"}, {"t1"}]
    assert [node.broker_overrides["log.retention.ms"] for node in shared] == ["5", "6"]
    three = properties(tmp_path, 3, tmp_path / "c")
    assert "--topic-configs is given 2 times, and --config 3 times" in refusal(one, two, three, topics=(*topics,))
    assert "without as many --config" in refusal(topics=(*topics,))
    assert "--broker-configs needs the configs of the topics" in refusal(one, brokers=(brokers,))
    with pytest.raises(UsageError, match="exclude each other"):
        load_run_settings((one,), (), topic_configs=(topics[0],), metadata_dir=tmp_path)


# ------------------------------------------------------------------------------------------------------------- the runs
@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of brokers 1 and 2, which have replicas of the same partitions."""
    for node_id in (1, 2):
        log_dir = tmp_path / f"data{node_id}"
        for name in ("kept-0", "short-0"):
            make_log(log_dir, name, times_ms=(OLD_MS,) * 3)
        (log_dir / "meta.properties").write_text(f"version=0\nbroker.id={node_id}\ncluster.id=c\n")
    return tmp_path / "data1", tmp_path / "data2"


def rows(outcome: Outcome) -> list[tuple[int, str, str, str]]:
    assert outcome.status == 0, outcome.stderr
    found = outcome.report["partitions"]
    return sorted((row["node_id"], row["log_dir"], row["partition"], row["status"]) for row in found)


def test_one_run_expires_the_directories_of_each_node_by_its_own_file(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = nodes
    policy = "log.cleanup.policy=delete\nlog.retention.hours="
    configs = (
        f"--config={properties(tmp_path, 1, first, more=policy + '1')}",
        f"--config={properties(tmp_path, 2, second, more=policy + '-1')}",
    )
    about = (
        f"--topic-configs={described(tmp_path, 'topics', POLICIES)}",
        f"--broker-configs={described(tmp_path, 'brokers', {})}",
    )
    outcome = sediment("expire", *configs, *about, "--json", f"--now-ms={NOW_MS}")
    assert rows(outcome) == [
        (1, str(first), "kept-0", "expired"),
        (1, str(first), "short-0", "expired"),
        (2, str(second), "kept-0", "skipped"),
        (2, str(second), "short-0", "expired"),
    ]
    assert bases(second / "kept-0") == [0, 5, 10]
    assert rows(sediment("plan", *configs, *about, "--json", f"--now-ms={NOW_MS}"))[2][:2] == (2, str(second))


def test_one_run_compacts_the_replicas_of_several_nodes(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    configs = [f"--config={properties(tmp_path, number, log_dir)}" for number, log_dir in enumerate(nodes, start=1)]
    topics = described(tmp_path, "topics", {"kept": {"cleanup.policy": "compact"}, "short": {}})
    options = ("--force", f"--topic-configs={topics}", "--json", f"--now-ms={NOW_MS}")
    done = sediment("compact", *configs, *options)
    assert [row for row in rows(done) if row[3] == "compacted"] == [
        (1, str(nodes[0]), "kept-0", "compacted"),
        (2, str(nodes[1]), "kept-0", "compacted"),
    ]
    assert {bases(log_dir / "kept-0")[0] for log_dir in nodes} == {0}
    assert (nodes[0] / "kept-0" / f"{0:020}.log").read_bytes() == (nodes[1] / "kept-0" / f"{0:020}.log").read_bytes()


def test_directories_of_several_clusters_are_refused(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    (nodes[1] / "meta.properties").write_text("version=0\nbroker.id=2\ncluster.id=other\n")
    configs = [f"--config={properties(tmp_path, number, path)}" for number, path in enumerate(nodes, start=1)]
    outcome = sediment("plan", *configs)
    assert outcome.status == 2 and "several clusters" in outcome.stderr and "other" in outcome.stderr


def test_copies_of_directories_find_the_file_of_their_node(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    configs = [f"--config={properties(tmp_path, number, path)}" for number, path in enumerate(nodes, start=1)]
    shutil.copytree(nodes[1], tmp_path / "copy")
    assert rows(sediment("plan", tmp_path / "copy", *configs, "--json"))[0][:2] == (2, str(tmp_path / "copy"))
    (tmp_path / "copy" / "meta.properties").unlink()
    outcome = sediment("plan", tmp_path / "copy", *configs)
    assert outcome.status == 2 and "none of the --config files" in outcome.stderr


@pytest.mark.parametrize(
    "command",
    [("verify", "{1}", "{2}"), ("adopt", "{1}", "--yes"), ("serve",), ("dump", "{1}", "{2}")],
    ids=lambda command: command[0],
)
def test_a_command_on_one_node_refuses_a_second_config(
    nodes: tuple[Path, Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    configs = [f"--config={properties(tmp_path, number, path)}" for number, path in enumerate(nodes, start=1)]
    before = [tree(path) for path in nodes]
    named = [word.format("", *nodes) for word in command]
    outcome = sediment(*named, *configs)
    assert outcome.status == 2 and "--config" in outcome.stderr and outcome.stdout == "", outcome.stderr
    assert [tree(path) for path in nodes] == before


def test_doctor_checks_the_directories_of_every_node(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    configs = [f"--config={properties(tmp_path, number, path)}" for number, path in enumerate(nodes, start=1)]
    checks = sediment("doctor", *configs, "--json").report["checks"]
    found = {check["log_dir"]: check["found"] for check in checks if check["name"] == "log-directory"}
    assert found == {str(path): f"2 partitions of node {number}" for number, path in enumerate(nodes, start=1)}
    (settings,) = (check for check in checks if check["name"] == "settings")
    assert settings["status"] == "warning" and "--topic-configs" in settings["advice"]
    assert "--metadata" not in settings["advice"] and "--config FILE" not in settings["advice"]
