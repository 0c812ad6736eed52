"""Commands without the files that contain the settings: what they leave alone, refuse and delete."""

from __future__ import annotations

import logging
import shutil
import tarfile
from pathlib import Path

import pytest

from sediment.engine.clone.metadata_append import append_records
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from tests.archives import unpack
from tests.jobs.expiring.expired_logs import bases, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree, write_checkpoint
from tests.segments import NOW_MS

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
OLD_MS = NOW_MS - 30 * 86_400_000
CLUSTER_ID = "O7nPJMQyQ3aut9kyjnCiVg"
MIGRATION, PRE_MIGRATION, POST_MIGRATION = 1, 2, 3  # Kafka's ZkMigrationState


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Return node 7's log directory with the metadata log, and old records in the first partition of each topic."""
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "first")
    for name in ("plain-0", "both-0", "compacted-0", "late-0", "again-0"):
        make_log(tmp_path / "first", name, times_ms=(OLD_MS,) * 3)
    return tmp_path / "first"


@pytest.fixture
def second(first: Path) -> Path:
    """Another log directory of the same node, without the metadata log."""
    path = first.with_name("second")
    path.mkdir()
    shutil.copy(first / "meta.properties", path)
    for name in ("plain-0", "both-0", "compacted-0"):
        shutil.move(first / name, path / name)
    (path / ".kafka_cleanshutdown").touch()
    return path


@pytest.fixture
def server_properties(first: Path) -> Path:
    path = first.with_name("server.properties")
    path.write_text(
        f"node.id=7\nprocess.roles=broker,controller\nlog.dirs={first},{first.with_name('second')}\n"
        "log.retention.hours=-1\nlog.cleanup.policy=compact\n"
    )
    return path


def expire(*arguments: object) -> Outcome:
    return sediment("expire", *arguments, "--json", f"--now-ms={NOW_MS}")


def codes(outcome: Outcome) -> dict[str, tuple[str, str | None]]:
    return {name: (report["status"], report["reason_code"]) for name, report in outcome.partitions().items()}


# ----------------------------------------------------------------------------- a node with more than one log directory
@pytest.mark.parametrize("command", ["expire", "compact"])
@pytest.mark.parametrize("more", [(), ("--broker-defaults",), ("--set=plain:cleanup.policy=delete",)])
def test_a_node_directory_without_the_metadata_is_not_changed(second, command, more):
    before = tree(second)
    outcome = sediment(command, second, *more)
    assert outcome.status == 2 and outcome.stdout == ""
    assert "KRaft node 7" in outcome.stderr and "--metadata" in outcome.stderr
    assert tree(second) == before and not (second / ".lock").exists()


@pytest.mark.parametrize("command", ["expire", "compact"])
def test_a_dry_run_warns_of_a_directory_that_a_run_refuses(second, command, caplog):
    plain = "--set=plain:cleanup.policy=compact,delete"
    dry_run = sediment(command, second, "--dry-run", plain)
    refused = sediment(command, second, plain)
    assert (dry_run.status, refused.status) == (0, 2)
    (warning,) = (message for message in caplog.messages if "refuses" in message)
    assert warning.removeprefix("a run without --dry-run refuses this directory: ") in refused.stderr
    assert "give --set both:cleanup.policy=…, and the same for compacted, or select fewer topics" in refused.stderr

    caplog.clear()
    assert sediment(command, second, "--dry-run", plain, "--topic=plain").status == 0
    assert not [message for message in caplog.messages if "refuses" in message]
    one = sediment(command, second, "--topic=compacted")
    assert one.status == 2 and one.stderr.endswith("or give --set compacted:cleanup.policy=…\n")


def test_a_broker_file_that_does_not_lead_to_the_metadata_does_not_replace_it(second, tmp_path):
    config = tmp_path / "elsewhere.properties"
    config.write_text("node.id=7\nlog.dirs=/no/such/directory\n")
    before = tree(second)
    assert expire(second, f"--config={config}").status == 2
    assert tree(second) == before


@pytest.mark.parametrize("meta", [None, "version=0\nbroker.id=7\n"])
@pytest.mark.parametrize("command", ["expire", "compact"])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_static_settings_of_a_node_are_not_those_of_a_topic_whose_own_configs_are_not_known(
    first, second, server_properties, meta, command, policy
):
    (second / "meta.properties").unlink()
    if meta is not None:
        (second / "meta.properties").write_text(meta)
    server_properties.write_text(
        server_properties.read_text() + f"log.cleanup.policy={policy}\nlog.retention.hours=1\n"
    )
    before = {name: tree(second / name) for name in ("plain-0", "both-0", "compacted-0")}
    force = ("--force",) if command == "compact" else ()
    outcome = sediment(command, "--config", server_properties, *force, "--json", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stderr
    reports = outcome.partitions()
    assert {reports[name]["reason_code"] for name in before} == {"policy-unknown"}
    assert "--metadata" in reports["plain-0"]["reason"]
    assert {name: tree(second / name) for name in before} == before


def test_a_nodes_static_retention_is_not_that_of_a_topic_whose_policy_alone_is_set(second, tmp_path):
    config = tmp_path / "elsewhere.properties"
    config.write_text("process.roles=broker\nlog.dirs=/no/such/directory\nlog.retention.hours=1\n")
    sets = [f"--set={topic}:cleanup.policy=delete" for topic in ("plain", "both", "compacted")]
    outcome = expire(second, f"--config={config}", *sets)
    assert set(codes(outcome).values()) == {("skipped", "retention-unknown")}
    outcome = expire(second, f"--config={config}", *sets, "--broker-defaults")
    assert set(codes(outcome).values()) == {("expired", None)}


def test_the_metadata_of_a_sibling_directory_holds(first, second):
    outcome = expire(second, f"--metadata={first}")
    assert outcome.status == 0, outcome.stderr
    assert codes(outcome) == {
        "both-0": ("expired", None),
        "compacted-0": ("skipped", "nothing-to-delete"),
        "plain-0": ("skipped", "policy-unknown"),
    }
    assert bases(second / "both-0") == [15]
    assert bases(second / "compacted-0") == bases(second / "plain-0") == [0, 5, 10]


def test_the_metadata_may_be_named_by_its_own_directory(first, second):
    assert expire(second, f"--metadata={first / '__cluster_metadata-0'}", "--dry-run").status == 0


@pytest.mark.parametrize("key", ["log.dirs", "metadata.log.dir"])
def test_a_brokers_file_leads_to_the_metadata(first, second, tmp_path, key):
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=7\n{key}={first}\nlog.cleanup.policy=compact\nlog.retention.ms=1000\n")
    outcome = expire(second, f"--config={config}")
    assert outcome.status == 0, outcome.stderr
    assert codes(outcome)["plain-0"] == ("skipped", "nothing-to-delete")
    assert codes(outcome)["both-0"] == ("expired", None)


def test_static_settings_of_the_brokers_file_hold(first, second, server_properties):
    outcome = expire("--config", server_properties)
    assert outcome.status == 0, outcome.stderr
    found = codes(outcome)
    assert {report["log_dir"] for report in outcome.report["partitions"]} == {str(first), str(second)}
    assert found["again-0"] == ("skipped", "nothing-to-delete")
    assert bases(first / "again-0") == bases(second / "plain-0") == [0, 5, 10]


def test_without_log_dir_and_without_log_dirs_in_the_file_a_command_says_what_to_name(tmp_path):
    config = tmp_path / "some.properties"
    config.write_text("log.retention.ms=5\n")
    for arguments in ((), ("--config", config)):
        outcome = sediment("plan", *arguments)
        assert outcome.status == 2 and "no LOG_DIR is given" in outcome.stderr, outcome.stderr


def test_sets_for_every_selected_topic_stand_in_for_the_metadata(second):
    sets = [f"--set={topic}:cleanup.policy=delete" for topic in ("plain", "both", "compacted")]
    outcome = expire(second, *sets, "--set=plain:retention.ms=1000")
    assert outcome.status == 0, outcome.stderr
    assert codes(outcome) == {
        "both-0": ("skipped", "retention-unknown"),
        "compacted-0": ("skipped", "retention-unknown"),
        "plain-0": ("expired", None),
    }
    selected = expire(second, "--partition=both-*", "--set=both:cleanup.policy=delete", "--set=both:retention.ms=1")
    assert codes(selected) == {"both-0": ("expired", None)}


def test_metadata_of_another_cluster_is_refused(first, second):
    (first / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=another\n")
    outcome = expire(second, f"--metadata={first}")
    assert outcome.status == 2 and "another" in outcome.stderr and CLUSTER_ID in outcome.stderr


@pytest.mark.parametrize("meta", [None, "version=0\nbroker.id=7\n"])
@pytest.mark.parametrize("key", ["node.id", "broker.id"])
@pytest.mark.parametrize("command", ["expire", "compact"])
def test_the_file_of_another_node_is_refused(first, tmp_path, command, key, meta):
    if meta is not None:
        (first / "meta.properties").write_text(meta)
    config = tmp_path / "other.properties"
    config.write_text(f"{key}=8\nprocess.roles=broker\nlog.retention.ms=1\n")
    before = tree(first)
    outcome = sediment(command, first, f"--config={config}")
    assert outcome.status == 2 and "node 8" in outcome.stderr and "node 7" in outcome.stderr
    assert tree(first) == before and not (first / ".lock").exists()


def test_a_copy_without_meta_properties_has_the_dynamic_configs_of_the_node_of_the_metadata(first, second, tmp_path):
    (second / "meta.properties").unlink()
    settings = RunSettings((Settings.load(None, [], metadata_dir=first),))
    directory = open_directories([second], Selection(), settings, Fs())[0]
    assert directory.settings.broker_overrides["message.max.bytes"] == "2000000"  # of node 7 alone


def test_a_metadata_directory_without_the_log_is_refused(second, tmp_path):
    outcome = expire(second, f"--metadata={tmp_path}")
    assert outcome.status == 2 and "does not contain __cluster_metadata-0" in outcome.stderr


@pytest.mark.parametrize("command", [("plan",), ("recover", "--dry-run"), ("expire", "--dry-run")])
def test_commands_that_change_nothing_go_on_with_the_policy_unknown(second, command):
    outcome = sediment(*command, second, "--json", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stderr
    if command != ("recover", "--dry-run"):
        assert {code for _, code in codes(outcome).values()} == {"policy-unknown"}
    if command == ("plan",):
        retention = {report["retention"]["reason_code"] for report in outcome.report["partitions"]}
        assert retention == {"policy-unknown"}


# --------------------------------------------------------------------------------------- the metadata without the file
def test_what_topics_leave_to_the_broker_is_unknown_without_its_file(first):
    outcome = expire(first)
    assert outcome.status == 0, outcome.stderr
    found = codes(outcome)
    assert found["again-0"] == ("skipped", "policy-unknown")
    assert found["both-0"] == ("expired", None)
    assert found["late-0"] == ("skipped", "nothing-to-delete")
    assert "--config FILE" in outcome.partitions()["again-0"]["reason"]
    assert bases(first / "again-0") == [0, 5, 10]


def test_fail_on_unknown_turns_such_a_partition_into_exit_status_1(first):
    arguments = ("--partition=again-0", "--dry-run")
    assert expire(first, *arguments).status == 0
    assert expire(first, *arguments, "--fail-on-unknown").status == 1
    assert expire(first, *arguments, "--fail-on-unknown", "--set=again:cleanup.policy=compact").status == 0
    assert sediment("plan", first, "--partition=again-0", "--fail-on-unknown", "--json").status == 1


def test_broker_defaults_count_once_they_are_said_to_be_meant(first):
    outcome = expire(first, "--broker-defaults", "--partition=again-0")
    assert codes(outcome) == {"again-0": ("expired", None)}


# --------------------------------------------------------------------------------------------------------- a bare copy
@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "bare"
    for name in ("orders-0", "__consumer_offsets-3", "__share_group_state-0"):
        make_log(path, name, times_ms=(OLD_MS,) * 3)
    (path / ".kafka_cleanshutdown").unlink()
    return path


def test_nothing_of_a_bare_copy_is_deleted_or_compacted(bare):
    before = tree(bare)
    outcome = expire(bare)
    assert outcome.status == 0, outcome.stderr
    assert set(codes(outcome).values()) == {("skipped", "policy-unknown")}
    compacted = sediment("compact", bare, "--json", "--partition=orders-0")
    assert codes(compacted) == {"orders-0": ("skipped", "policy-unknown")}
    assert tree(bare) == before


def test_what_a_file_omits_is_unknown_for_topics_without_metadata(bare, tmp_path):
    config = tmp_path / "own.properties"
    config.write_text("log.retention.hours=168\n")
    assert set(codes(expire(bare, f"--config={config}")).values()) == {("skipped", "policy-unknown")}
    config.write_text("log.retention.hours=168\nlog.cleanup.policy=delete\n")
    found = codes(expire(bare, f"--config={config}"))
    assert found["orders-0"] == ("expired", None)
    assert found["__consumer_offsets-3"] == found["__share_group_state-0"] == ("skipped", "policy-unknown")


def test_a_size_limit_alone_deletes_by_size_alone(bare):
    sets = ("--partition=orders-0", "--set=orders:cleanup.policy=delete", "--set=orders:retention.bytes=720")
    outcome = expire(bare, *sets)
    assert codes(outcome) == {"orders-0": ("expired", None)}
    assert bases(bare / "orders-0") == [5, 10]


def test_a_partition_that_the_cleaner_checkpoint_lists_is_not_expired_by_a_default(bare):
    write_checkpoint(bare / "cleaner-offset-checkpoint", {"orders-0": 5})
    found = codes(expire(bare, "--broker-defaults", "--partition=orders-0"))
    assert found == {"orders-0": ("skipped", "policy-unknown")}


def test_a_partition_that_the_cleaner_checkpoint_lists_is_not_expired_by_the_policy_of_a_file(bare, tmp_path):
    write_checkpoint(bare / "cleaner-offset-checkpoint", {"orders-0": 5})
    config = tmp_path / "server.properties"
    config.write_text("log.retention.hours=168\nlog.cleanup.policy=delete\n")
    before = tree(bare)
    outcome = expire(bare, f"--config={config}", "--partition=orders-0")
    assert codes(outcome) == {"orders-0": ("skipped", "policy-unknown")}
    assert "--set orders:cleanup.policy=" in outcome.partitions()["orders-0"]["reason"]
    assert tree(bare) == before
    stated = expire(bare, f"--config={config}", "--partition=orders-0", "--set=orders:cleanup.policy=delete")
    assert codes(stated) == {"orders-0": ("expired", None)}


# ------------------------------------------------------------------------------------------------ a broker of ZooKeeper
@pytest.fixture
def zookeeper(tmp_path: Path) -> Path:
    """A directory of a broker whose topic configs are in ZooKeeper, and its file `server.properties`."""
    path = tmp_path / "zookeeper"
    for name in ("compacted-0", "kept-0"):
        make_log(path, name, times_ms=(OLD_MS,) * 3)
    (path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=c\n")
    write_checkpoint(path / "cleaner-offset-checkpoint", {})
    return path


def zookeeper_file(log_dir: Path, policy: str, *, identity: str = "broker.id=3\nzookeeper.connect=zk:2181\n") -> Path:
    path = log_dir.with_name("server.properties")
    path.write_text(f"{identity}log.dirs={log_dir}\nlog.cleanup.policy={policy}\nlog.retention.hours=1\n")
    return path


IDENTITIES = [
    "broker.id=3\nzookeeper.connect=zk:2181\n",
    "broker.id=3\n",
    "zookeeper.connect=zk:2181\n",
    "node.id=3\nzookeeper.connect=zk:2181\n",
    "broker.id=3\nzookeeper.connect=zk:2181\nzookeeper.metadata.migration.enable=true\n"
    "controller.quorum.voters=9@q:9093\n",
    "",
]


@pytest.mark.parametrize("identity", IDENTITIES, ids=range(len(IDENTITIES)))
@pytest.mark.parametrize("command", ["expire", "compact"])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_static_settings_of_a_zookeeper_broker_are_not_those_of_its_topics(zookeeper, command, policy, identity):
    config = zookeeper_file(zookeeper, policy, identity=identity)
    before = tree(zookeeper / "compacted-0"), tree(zookeeper / "kept-0")
    force = ("--force",) if command == "compact" else ()
    outcome = sediment(command, "--config", config, *force, "--json", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stderr
    assert set(codes(outcome).values()) == {("skipped", "policy-unknown")}
    assert (tree(zookeeper / "compacted-0"), tree(zookeeper / "kept-0")) == before
    assert sediment(command, "--config", config, *force, "--dry-run", "--fail-on-unknown").status == 1


def test_a_settings_file_does_not_make_a_zookeeper_brokers_file_count(zookeeper, tmp_path):
    settings = tmp_path / "sediment.toml"
    settings.write_text(f'config = "{zookeeper_file(zookeeper, "delete")}"\n')
    assert set(codes(expire(zookeeper, "--settings", settings)).values()) == {("skipped", "policy-unknown")}


def test_a_zookeeper_brokers_retention_is_not_that_of_a_topic_whose_policy_alone_is_set(zookeeper):
    config = zookeeper_file(zookeeper, "compact")
    policy = "--set=kept:cleanup.policy=delete"
    found = codes(expire("--config", config, policy))
    assert found == {"compacted-0": ("skipped", "policy-unknown"), "kept-0": ("skipped", "retention-unknown")}
    found = codes(expire("--config", config, policy, "--set=kept:retention.ms=1000"))
    assert found["kept-0"] == ("expired", None)


def test_a_zookeeper_brokers_file_counts_once_its_defaults_are_said_to_be_meant(zookeeper):
    found = codes(expire("--config", zookeeper_file(zookeeper, "delete"), "--broker-defaults", "--topic=kept"))
    assert found == {"kept-0": ("expired", None)}


def test_messages_for_a_zookeeper_directory_do_not_send_the_user_to_a_metadata_log(zookeeper):
    config = zookeeper_file(zookeeper, "delete")
    for arguments in (("--config", config), (zookeeper,)):
        reason = expire(*arguments).partitions()["kept-0"]["reason"]
        assert "ZooKeeper" in reason and "--metadata" not in reason, reason


def migrate(log_dir: Path, *states: int) -> None:
    """Make it the directory of a broker that was one of ZooKeeper; the last of `states` is that of the migration."""
    (log_dir / "meta.properties").write_text(f"version=0\nbroker.id=7\ncluster.id={CLUSTER_ID}\n")
    for state in states:
        metadata = read_cluster_metadata(log_dir, Fs())
        assert metadata is not None
        record = encode_metadata_record(m.ZkMigrationStateRecord(zk_migration_state=state), 0)
        append_records(log_dir, [record], metadata, Fs(), now_ms=NOW_MS)


@pytest.mark.parametrize("states", [(PRE_MIGRATION,), (PRE_MIGRATION, MIGRATION)])
def test_a_metadata_log_of_a_migration_that_has_not_ended_counts_only_if_it_is_named(first, caplog, states):
    migrate(first, *states)
    config = zookeeper_file(first, "delete", identity="broker.id=7\nzookeeper.connect=zk:2181\n")
    for arguments in (("--config", config), (first,)):
        assert set(codes(expire(*arguments)).values()) == {("skipped", "policy-unknown")}
        assert "__cluster_metadata-0 is ignored" in caplog.text
        caplog.clear()
    assert codes(expire(first, "--metadata", first))["both-0"] == ("expired", None)
    assert not caplog.messages


# A migrated broker keeps version 0 in its meta.properties for ever, and Kafka 4 writes no state of a migration.
@pytest.mark.parametrize("states", [(), (PRE_MIGRATION, MIGRATION, POST_MIGRATION)])
def test_the_metadata_log_counts_once_the_migration_has_ended(first, caplog, states):
    migrate(first, *states)
    assert codes(expire(first))["both-0"] == ("expired", None)
    assert not caplog.messages


def test_a_clone_of_a_migrated_node_has_the_configs_of_its_metadata_log(first):
    migrate(first, PRE_MIGRATION, MIGRATION, POST_MIGRATION)
    clone = first.with_name("clone")
    outcome = sediment("clone", first, "--to", clone, "--json")
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    found = read_cluster_metadata(clone, Fs())
    assert found is not None
    assert found.topic_configs["both"]["cleanup.policy"] == "delete,compact"


def test_a_migrated_directory_is_one_of_zookeeper_if_the_file_says_so(first, caplog):
    migrate(first, PRE_MIGRATION, MIGRATION, POST_MIGRATION)
    config = zookeeper_file(first, "delete", identity="broker.id=7\nzookeeper.connect=zk:2181\n")
    assert set(codes(expire("--config", config)).values()) == {("skipped", "policy-unknown")}
    assert "__cluster_metadata-0 is ignored" in caplog.text


def test_a_zookeeper_brokers_file_does_not_replace_the_metadata_of_a_kraft_node(first):
    config = zookeeper_file(first, "delete", identity="broker.id=7\nzookeeper.connect=zk:2181\n")
    before = tree(first)
    for more in ((), ("--broker-defaults",)):
        outcome = expire("--config", config, *more)
        assert outcome.status == 2 and "a broker of ZooKeeper" in outcome.stderr, outcome.stderr
    assert tree(first) == before


# ----------------------------------------------------------------------------------------------------------- selections
COMMANDS = [("plan",), ("compact",), ("expire",), ("recover",), ("dump",), ("snapshot", "--to=table")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_pattern_that_matches_nothing_is_wrong_use(bare, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = tree(bare)
    outcome = sediment(*command, bare, "--partition=order-0", "--partition=orders-0")
    assert outcome.status == 2 and outcome.stdout == ""
    assert "'order-0'" in outcome.stderr and "orders-0" in outcome.stderr.partition("nearest")[2]
    assert tree(bare) == before and not (bare / ".lock").exists()


@pytest.mark.parametrize("command", COMMANDS[:5], ids=lambda command: command[0])
def test_a_scheduler_may_allow_an_empty_selection(bare, command):
    assert sediment(*command, bare, "--partition=order-0", "--allow-empty-selection", "--json").status == 0


def test_a_scheduler_may_allow_an_empty_selection_of_a_run_with_an_output(bare, tmp_path):
    output = tmp_path / "output"
    outcome = sediment(
        "compact", bare, f"--output={output}", "--partition=order-0", "--allow-empty-selection", "--json"
    )
    assert (outcome.status, outcome.partitions()) == (0, {})
    assert not output.exists()


def test_a_pattern_needs_a_match_in_one_of_several_directories(first, second):
    assert sediment("plan", first, second, "--partition=late-*", "--partition=both-*", "--json").status == 0
    assert sediment("plan", first, second, "--partition=nope-*", "--json").status == 2


def test_a_log_directory_without_partitions_has_nothing_to_do(tmp_path):
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for command in ("plan", "compact", "expire", "recover"):
        assert sediment(command, tmp_path, "--json").status == 0


# ------------------------------------------------------------------------------------------------------------- messages
def test_an_unstated_lag_is_0_and_said(bare, caplog):
    arguments = ("plan", bare, "--partition=orders-0", "--set=orders:cleanup.policy=compact", "--json")
    with caplog.at_level(logging.WARNING):
        sediment(*arguments)
    assert ["min.compaction.lag.ms is not stated for topic orders and counts as 0" in m for m in caplog.messages] == [
        True
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        sediment(*arguments, "--set=orders:min.compaction.lag.ms=0")
    assert caplog.messages == []
