"""Topic settings from a stopped KRaft broker's directory, compared with that broker's answers (tests/data/kraft)."""

from __future__ import annotations

import json
import logging
import shutil
import tarfile
from pathlib import Path

import pytest

from sediment.engine.config_definitions import TOPIC_KEYS
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.resolve import Origin, Settings, parse_value
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import CorruptBatchError, SettingsError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from tests.archives import unpack
from tests.jobs.log_dirs import sediment
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
ANSWERS = json.loads((KRAFT / "configs.json").read_text())
COMPACTED = TopicPartition("compacted", 0)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def server_properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in ANSWERS["static"].items()))
    return path


def opened(log_dir: Path, config: Path | None = None, *given: str) -> SelectedDirectory:
    (directory,) = open_directories([log_dir], Selection(), RunSettings((Settings.load(config, given),)), Fs())
    return directory


def set_aside(log_dir: Path, name: str) -> None:
    """Restore the directory of a deleted topic under its original name."""
    (deleted,) = log_dir.glob(f"{name}.*-delete")
    shutil.rmtree(log_dir / name, ignore_errors=True)
    deleted.rename(log_dir / name)


# ----------------------------------------------------------------------------------------------------------- precedence
def test_every_config_of_every_topic_is_what_the_broker_answers(log_dir, server_properties):
    directory = opened(log_dir, server_properties)
    assert {partition.topic for partition in directory.partitions} == set(ANSWERS["topics"])
    for partition in directory.partitions:
        found = directory.settings_of(partition, Fs()).in_force(partition.topic)
        answered = ANSWERS["topics"][partition.topic]
        for name, (text, source) in answered.items():
            value, origin = found[name]
            if name == "segment.bytes" and "internal.segment.bytes" in answered:
                text, source = answered["internal.segment.bytes"]
            assert value == (None if text is None else parse_value(TOPIC_KEYS[name], text, Origin.SET)), name
            if source != "DEFAULT_CONFIG":
                assert origin == ("file" if source == "STATIC_BROKER_CONFIG" else "metadata"), name


def test_metadata_is_stronger_than_the_file_and_weaker_than_set(log_dir, server_properties):
    given = ("delete.retention.ms=9", "plain:segment.ms=8", "segment.ms=7")
    directory = opened(log_dir, server_properties, *given)
    plain = directory.config_of(TopicPartition("plain", 0), Fs())
    assert plain.retention.retention_ms == 7_200_000
    assert plain.compaction.delete_retention_ms == 9
    assert plain.segment_ms == 8
    assert plain.cleanup_policy == ("compact", "delete")
    assert directory.config_of(COMPACTED, Fs()).segment_ms == 7
    assert opened(log_dir).config_of(TopicPartition("plain", 0), Fs()).cleanup_policy == ()


def test_a_deleted_and_recreated_topic_has_the_configs_of_its_new_self(log_dir):
    config = opened(log_dir).config_of(TopicPartition("again", 0), Fs())
    assert config.cleanup_policy == ()
    assert config.compaction.max_message_bytes == 54_321
    assert config.compaction.segment_bytes == 1 << 30


@pytest.mark.parametrize("name", ["doomed-0", "again-0"])
def test_the_directory_of_a_deleted_topic_is_neither_compacted_nor_expired(log_dir, name, caplog):
    set_aside(log_dir, name)
    partition = TopicPartition(name[:-2], 0)
    with caplog.at_level(logging.WARNING):
        assert opened(log_dir).config_of(partition, Fs()).cleanup_policy == ()
    assert (
        len(caplog.messages) == 1
        and name in caplog.messages[0]
        and "rename the partition to -stray" in caplog.messages[0]
    )
    asked = opened(log_dir, None, f"{partition.topic}:cleanup.policy=compact")
    assert asked.config_of(partition, Fs()).cleanup_policy == ("compact",)


def test_a_partition_without_an_id_of_its_own_goes_by_its_name(log_dir):
    (log_dir / "compacted-0" / "partition.metadata").unlink()
    assert opened(log_dir).config_of(COMPACTED, Fs()).compacts


# ---------------------------------------------------------------------------------------------------------- directories
def test_directories_of_one_node_share_its_metadata(log_dir, tmp_path):
    second = tmp_path / "second"
    shutil.copytree(log_dir / "compacted-0", second / "compacted-0")
    shutil.copy(log_dir / "meta.properties", second)
    alone = opened(second)
    assert not alone.config_of(COMPACTED, Fs()).compacts
    _, shared = open_directories([log_dir, second], Selection(), RunSettings((Settings(),)), Fs())
    assert shared.config_of(COMPACTED, Fs()).compacts
    (second / "meta.properties").write_text("version=1\nnode.id=8\ncluster.id=another\n")
    _, strange = open_directories([log_dir, second], Selection(), RunSettings((Settings(),)), Fs())
    assert not strange.config_of(COMPACTED, Fs()).compacts


def test_one_policy_for_all_topics_is_accepted_with_metadata(log_dir):
    assert opened(log_dir, None, "cleanup.policy=compact").config_of(TopicPartition("late", 0), Fs()).compacts
    shutil.rmtree(log_dir / "__cluster_metadata-0")
    with pytest.raises(SettingsError, match="would apply to all"):
        opened(log_dir, None, "cleanup.policy=compact")


def test_a_damaged_metadata_log_is_an_error_and_not_ignored(log_dir):
    log = log_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-500] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptBatchError):
        opened(log_dir)
    for command in ("compact", "expire", "recover"):
        assert sediment(command, log_dir).status == 1


def test_passwords_among_the_dynamic_broker_configs_are_not_kept(log_dir):
    name, value = b"ssl.key.password", b"secret"
    record = b"\1\4\0\4\2" + b"7" + bytes([len(name) + 1]) + name + bytes([len(value) + 1]) + value + b"\0"
    with (log_dir / "__cluster_metadata-0" / f"{0:020d}.log").open("ab") as log:
        log.write(encode_batch([Record(252, NOW_MS, None, record)], base_offset=252, leader_epoch=2))
    directory = opened(log_dir)
    assert directory.settings.broker_overrides["message.max.bytes"] == "2000000"
    assert "secret" not in repr(directory)


# ------------------------------------------------------------------------------------------------------------- commands
def test_compact_of_a_stopped_brokers_directory_needs_no_setting(log_dir):
    for name in ("compacted-0", "plain-0"):
        for base in (0, 10):
            write_segment(log_dir / name, base, [batch_bytes(base), batch_bytes(base + 1, "j")])
        write_segment(log_dir / name, 20)
    outcome = sediment("compact", log_dir, "--force", "--json", "--now-ms", NOW_MS + 10**9)
    assert outcome.status == 0
    partitions = outcome.partitions()
    assert partitions["compacted-0"]["status"] == "compacted"
    assert partitions["compacted-0"]["messages_written"] < partitions["compacted-0"]["messages_read"]
    assert (partitions["plain-0"]["status"], partitions["plain-0"]["reason_code"]) == ("skipped", "policy-unknown")


def test_commands_leave_the_metadata_log_alone(log_dir):
    before = {path: path.read_bytes() for path in (log_dir / "__cluster_metadata-0").iterdir()}
    assert sediment("compact", log_dir, "--force").status == 0
    assert sediment("recover", log_dir).status == 0
    assert {path: path.read_bytes() for path in (log_dir / "__cluster_metadata-0").iterdir()} == before
