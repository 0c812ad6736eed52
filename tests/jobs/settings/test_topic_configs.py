"""Commands on the directory of a ZooKeeper broker whose topic configs are stated with --topic-configs.

The tasks run in this process.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_checkpoint
from tests.faults.inline_spark import inline_spark
from tests.jobs.expiring.expired_logs import bases, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree, write_checkpoint
from tests.segments import NOW_MS
from tests.server.live.nodes import new_node

OLD_MS = NOW_MS - 30 * 86_400_000
TOPICS = """\
Dynamic configs for topic compacted are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, \
STATIC_BROKER_CONFIG:log.cleanup.policy=delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
Dynamic configs for topic kept are:
  cleanup.policy=delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=delete, \
STATIC_BROKER_CONFIG:log.cleanup.policy=delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
  retention.ms=31536000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=31536000000}
Dynamic configs for topic plain are:
"""
BROKERS = "Dynamic configs for broker 3 are:\nDefault configs for brokers in the cluster are:\n"


@pytest.fixture(autouse=True)
def without_spark() -> Iterator[None]:
    with inline_spark():
        yield


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """The directory of broker 3 with old records in four topics; ZooKeeper knows the configs of three."""
    path = tmp_path / "data"
    names = ("compacted-0", "kept-0", "plain-0", "unlisted-0")
    for name in names:
        make_log(path, name, times_ms=(OLD_MS,) * 3)
    (path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=c\n")
    write_checkpoint(path / "recovery-point-offset-checkpoint", dict.fromkeys(names, 15))
    write_checkpoint(path / "replication-offset-checkpoint", dict.fromkeys(names, 15))
    return path


@pytest.fixture
def config(log_dir: Path) -> str:
    path = log_dir.with_name("server.properties")
    path.write_text(
        f"broker.id=3\nzookeeper.connect=zk:2181\nlog.dirs={log_dir}\nlog.cleanup.policy=delete\nlog.retention.hours=1\n"
    )
    return f"--config={path}"


def written(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return f"--{name}={tmp_path / name}"


@pytest.fixture
def topics(tmp_path: Path) -> str:
    return written(tmp_path, "topic-configs", TOPICS)


@pytest.fixture
def brokers(tmp_path: Path) -> str:
    return written(tmp_path, "broker-configs", BROKERS)


def run(command: str, *arguments: object, status: int = 0) -> Outcome:
    outcome = sediment(command, *arguments, "--json", f"--now-ms={NOW_MS}")
    assert outcome.status == status, outcome.stderr
    return outcome


def codes(outcome: Outcome) -> dict[str, tuple[str, str | None]]:
    return {name: (row["status"], row["reason_code"]) for name, row in outcome.partitions().items()}


# -------------------------------------------------------------------------------------------------- retention, cleaning
def test_every_topic_expires_by_its_own_configs_and_an_unlisted_one_stays(
    log_dir: Path, config: str, topics: str, brokers: str
) -> None:
    expected = {
        "compacted-0": ("skipped", "nothing-to-delete"),
        "kept-0": ("skipped", "nothing-to-delete"),
        "plain-0": ("expired", None),
        "unlisted-0": ("skipped", "policy-unknown"),
    }
    dry = run("expire", config, topics, brokers, "--broker-defaults", "--dry-run")
    assert codes(dry) == expected
    assert "--topic-configs does not list topic unlisted" in dry.partitions()["unlisted-0"]["reason"]
    assert codes(run("expire", config, topics, brokers)) == expected
    assert bases(log_dir / "plain-0") == [15]
    assert all(bases(log_dir / f"{name}-0") == [0, 5, 10] for name in ("compacted", "kept", "unlisted"))


def test_what_a_topic_leaves_to_the_broker_is_unknown_without_the_dynamic_configs_of_the_broker(
    log_dir: Path, config: str, topics: str
) -> None:
    before = tree(log_dir / "plain-0")
    outcome = run("expire", config, topics)
    assert codes(outcome)["plain-0"] == ("skipped", "policy-unknown")
    reason = outcome.partitions()["plain-0"]["reason"]
    assert "--broker-configs" in reason and "--metadata" not in reason and "--config" not in reason
    assert tree(log_dir / "plain-0") == before


def test_only_topics_whose_own_policy_compacts_are_compacted(config: str, topics: str, brokers: str) -> None:
    planned = run("plan", config, topics, brokers, "--force").partitions()
    found = codes(run("compact", config, topics, brokers, "--force"))
    assert found["compacted-0"][0] == "compacted" and planned["compacted-0"]["status"] == "cleanable"
    assert found["unlisted-0"] == ("skipped", "policy-unknown")
    assert {found["kept-0"], found["plain-0"]} == {("skipped", "not-compacted")}
    assert (
        planned["kept-0"]["cleanup_policy"] == ["delete"] and planned["unlisted-0"]["reason_code"] == "policy-unknown"
    )


def test_an_output_of_a_pipe_is_read_once(config: str, brokers: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(TOPICS,))
    writer.start()
    outcome = run("expire", config, f"--topic-configs={pipe}", brokers, "--dry-run")
    writer.join()
    assert codes(outcome)["plain-0"] == ("expired", None)


# ------------------------------------------------------------------------------------------------------- other commands
def test_erase_takes_its_action_from_the_policy_or_says_how_to_state_it(
    log_dir: Path, config: str, topics: str, brokers: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    erase = ("erase", "--yes", f"--keys-file={keys}", config)
    unstated = run(*erase, status=1).partitions()["plain-0"]
    assert unstated["reason_code"] == "policy-unknown" and "--topic-configs" in unstated["reason"]
    assert "--action" in unstated["reason"] and "--metadata" not in unstated["reason"]
    found = run(*erase, topics, brokers, status=1).partitions()
    assert [found[name]["action"] for name in ("compacted-0", "kept-0", "plain-0")] == ["tombstone", "drop", "drop"]
    assert found["unlisted-0"]["reason_code"] == "policy-unknown"
    assert run(*erase, "--action=drop", "--topic=unlisted").partitions()["unlisted-0"]["status"] == "erased"


def test_a_clone_has_the_stated_configs_and_the_way_back_to_them(
    log_dir: Path, config: str, topics: str, brokers: str, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    report = run("clone", log_dir, "--to", clone, config, topics, brokers, "--compact")
    found = read_bootstrap_checkpoint(clone, Fs())
    assert found is not None
    held = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert found.topic_configs["kept"] == {"cleanup.policy": "delete", **held}
    assert found.topic_configs["compacted"] == {"cleanup.policy": "compact", **held}
    assert found.topic_configs["unlisted"] == held
    assert any("retention.ms=31536000000" in command for command in report.report["restore"])
    rows = report.partitions()
    assert rows["compacted-0"]["compacted"] is True and rows["unlisted-0"]["reason_code"] == "policy-unknown"


def test_other_commands_take_the_files_too(log_dir: Path, config: str, topics: str, brokers: str) -> None:
    assert codes(run("recover", config, topics, brokers, "--dry-run"))["plain-0"][0] == "recovered"
    assert codes(run("reencode", config, topics, brokers, "--codec=zstd", "--dry-run"))["plain-0"][0] == "unchanged"
    checks = sediment("doctor", config, topics, brokers, "--json").report["checks"]
    (settings,) = (check for check in checks if check["name"] == "settings")
    assert "unlisted" in settings["found"] and "--topic-configs" in settings["advice"]


# -------------------------------------------------------------------------------------------------------- wrong and odd
def test_a_broken_file_is_wrong_use(log_dir: Path, config: str, brokers: str, tmp_path: Path) -> None:
    before = tree(log_dir)
    for text in ("", "hello\n", TOPICS[:-1], TOPICS.replace(" sensitive=false", "")):
        outcome = sediment("expire", config, brokers, written(tmp_path, "topic-configs", text), "--json")
        assert (outcome.status, outcome.stdout) == (2, "") and outcome.stderr.count("\n") == 1, outcome.stderr
    assert tree(log_dir) == before


def test_a_broker_that_its_file_does_not_list_is_wrong_use(config: str, topics: str, tmp_path: Path) -> None:
    brokers = written(tmp_path, "broker-configs", BROKERS.replace("broker 3", "broker 4"))
    outcome = sediment("expire", config, topics, brokers)
    assert outcome.status == 2 and "--broker-configs does not list broker 3" in outcome.stderr


def test_a_directory_with_a_metadata_log_has_its_configs_there(topics: str, tmp_path: Path) -> None:
    node = new_node(tmp_path / "node", {"kept": 1})
    for command in ("expire", "plan", "compact"):
        outcome = sediment(command, node, topics)
        assert outcome.status == 2 and "leave out --topic-configs" in outcome.stderr, outcome.stderr
    outcome = sediment("clone", node, "--to", tmp_path / "clone", topics)
    assert outcome.status == 2 and "leave out --topic-configs" in outcome.stderr, outcome.stderr


def test_a_kraft_directory_without_its_metadata_log_may_have_its_configs_stated(
    log_dir: Path, brokers: str, tmp_path: Path
) -> None:
    (log_dir / "meta.properties").write_text("version=1\nnode.id=3\ncluster.id=c\n")
    topics = written(tmp_path, "topic-configs", json.dumps({"plain": {"cleanup.policy": "delete", "retention.ms": 1}}))
    found = codes(run("expire", log_dir, topics, brokers))
    assert found == {
        "compacted-0": ("skipped", "policy-unknown"),
        "kept-0": ("skipped", "policy-unknown"),
        "plain-0": ("expired", None),
        "unlisted-0": ("skipped", "policy-unknown"),
    }


def test_a_policy_for_all_topics_is_refused_as_without_metadata(config: str, topics: str, brokers: str) -> None:
    outcome = sediment("expire", config, topics, brokers, "--set=cleanup.policy=delete")
    assert outcome.status == 2 and "would apply to all 4 topics" in outcome.stderr
