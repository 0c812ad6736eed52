"""Metadata logs of a broker of Kafka 4.2.0 (tests/data/kraft, by tests/e2e/metadata_fixture.py) and made by hand."""

from __future__ import annotations

import json
import shutil
import tarfile
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, finished_snapshots, read_cluster_metadata
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.protocol import messages as m
from tests.archives import unpack
from tests.segments import write_segment
from tests.served import unpacked
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import file_batches

KRAFT = Path(__file__).parents[2] / "data" / "kraft"


@pytest.fixture
def broker_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "broker")
    return tmp_path / "broker"


def metadata_dir(log_dir: Path) -> Path:
    return log_dir / "__cluster_metadata-0"


def drop_producer_snapshots(log_dir: Path) -> None:
    """Remove the snapshots, as after a crash: only a clean stop leaves one at the end of the log."""
    for path in metadata_dir(log_dir).glob("*.snapshot"):
        path.unlink()


def read(log_dir: Path) -> ClusterMetadata | None:
    return read_cluster_metadata(log_dir, Fs())


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic(name: str, number: int = 1) -> bytes:
    return b"\1\2\0" + text(name) + topic_id(name, number) + b"\0"


def remove(name: str, number: int = 1) -> bytes:
    return b"\1\x09\0" + topic_id(name, number) + b"\0"


def topic_id(name: str, number: int) -> bytes:
    return (name.encode() + bytes([number])) * 8


def config(name: str, key: str, value: str | None, kind: int = 2) -> bytes:
    return b"\1\4\0" + bytes([kind]) + text(name) + text(key) + text(value) + b"\0"


BEGIN, END, ABORT, NO_OP = b"\1\x17\0\0", b"\1\x18\0\0", b"\1\x19\0\0", b"\1\x14\0\0"


def batches(*groups: list[bytes], base: int = 0) -> list[bytes]:
    made = []
    for group in groups:
        records = [Record(base + delta, 1_000, None, value) for delta, value in enumerate(group)]
        made.append(encode_batch(records, base_offset=base, leader_epoch=1))
        base += len(group)
    return made


def by_hand(tmp_path: Path, *groups: list[bytes]) -> ClusterMetadata:
    write_segment(metadata_dir(tmp_path), 0, batches(*groups))
    found = read(tmp_path)
    assert found is not None
    return found


# --------------------------------------------------------------------------------------------------- a broker's own log
def test_topics_and_dynamic_configs_are_those_that_the_broker_answers_with(broker_dir):
    answers = json.loads((KRAFT / "configs.json").read_text())
    found = read(broker_dir)
    assert set(found.topic_ids) == set(answers["topics"])
    for name, configs in answers["topics"].items():
        set_by_topic = {key: value for key, (value, source) in configs.items() if source == "DYNAMIC_TOPIC_CONFIG"}
        assert found.topic_configs.get(name, {}) == set_by_topic
    dynamic = {key: value for key, (value, source) in answers["broker"].items() if source.startswith("DYNAMIC")}
    assert found.configs_of_broker(7) == dynamic


def test_topic_ids_are_those_in_the_partitions_directories(broker_dir):
    found = read(broker_dir)
    for path in broker_dir.glob("*/partition.metadata"):
        name = path.parent.name.rpartition("-")[0]
        if not path.parent.name.endswith("-delete") and not name.startswith("__cluster"):
            assert path.read_text().endswith(found.topic_ids[name])


def test_of_another_broker_only_the_configs_of_all_brokers_are_known(broker_dir):
    found = read(broker_dir)
    assert found.configs_of_broker(8) == found.configs_of_broker(None) == found.broker_configs[""]
    assert "message.max.bytes" not in found.configs_of_broker(8)


def test_the_log_alone_says_the_same_as_each_snapshot_with_the_log_after_it(broker_dir):
    expected = read(broker_dir)
    snapshots = sorted(metadata_dir(broker_dir).glob("*.checkpoint"))
    assert len(snapshots) == 5
    while snapshots:
        snapshots.pop().unlink()
        assert read(broker_dir) == expected


def test_a_snapshot_alone_is_enough(broker_dir):
    for path in metadata_dir(broker_dir).iterdir():
        if path.suffix != ".checkpoint":
            path.unlink()
    found = read(broker_dir)
    assert found.end_offset == 149
    assert "doomed" in found.topic_ids and "late" not in found.topic_ids


def test_a_log_cut_off_anywhere_says_what_its_whole_batches_say(broker_dir):
    drop_producer_snapshots(broker_dir)
    log = metadata_dir(broker_dir) / f"{0:020d}.log"
    content = log.read_bytes()
    ends = set()
    for size in range(len(content) - 2_500, len(content), 61):
        log.write_bytes(content[:size])
        ends.add(read(broker_dir).end_offset)
    assert len(ends) > 3 and max(ends) < 252


def test_reading_changes_nothing(broker_dir):
    before = {path: path.read_bytes() for path in broker_dir.rglob("*") if path.is_file()}
    read(broker_dir)
    assert {path: path.read_bytes() for path in broker_dir.rglob("*") if path.is_file()} == before


# --------------------------------------------------------------------------------------------------------------- absent
def test_a_directory_without_a_metadata_log_says_nothing(tmp_path):
    assert read(tmp_path) is None
    metadata_dir(tmp_path).mkdir()
    assert read(tmp_path) is None
    write_segment(metadata_dir(tmp_path), 0)
    assert read(tmp_path) is None


def test_the_latest_snapshot_is_that_of_the_highest_offset_and_epoch():
    names = [f"{30:020d}-{1:010d}.checkpoint", f"{30:020d}-{2:010d}.checkpoint", f"{4:020d}-{9:010d}.checkpoint"]
    unfinished = [
        f"{90:020d}-{9:010d}.checkpoint.part",
        f"{90:020d}-{9:010d}.checkpoint.deleted",
        "bootstrap.checkpoint",
    ]
    assert finished_snapshots(names + unfinished)[0] == (30, 2, names[1])
    assert finished_snapshots(unfinished) == []


# -------------------------------------------------------------------------------------------------- topics and configs
def test_a_topic_that_is_deleted_and_made_again_has_only_its_new_configs(tmp_path):
    first = [topic("a"), config("a", "cleanup.policy", "compact"), config("a", "segment.ms", "5")]
    found = by_hand(tmp_path, first, [remove("a")], [topic("a", 2), config("a", "segment.ms", "6")])
    assert found.topic_configs == {"a": {"segment.ms": "6"}}
    assert found.topic_ids == {"a": format_uuid(topic_id("a", 2))}


def test_a_config_that_is_removed_is_gone_whether_it_was_there_or_not(tmp_path):
    found = by_hand(tmp_path, [topic("b"), config("b", "x", "1"), config("b", "x", None), config("b", "y", None)])
    assert found.topic_configs == {}


def test_configs_of_other_resources_do_not_reach_topics_and_brokers(tmp_path):
    found = by_hand(tmp_path, [topic("b"), config("b", "x", "1", kind=16), config("b", "x", "1", kind=8)])
    assert (found.topic_configs, found.broker_configs) == ({}, {})


# --------------------------------------------------------------------------------------------------------- transactions
def test_a_transaction_counts_when_it_ends(tmp_path):
    found = by_hand(tmp_path, [BEGIN, topic("b")], [config("b", "x", "1"), END], [config("b", "y", "2")])
    assert found.topic_configs == {"b": {"x": "1", "y": "2"}}


@pytest.mark.parametrize("end", [[], [[ABORT]], [[NO_OP]]])
def test_a_transaction_that_is_aborted_or_open_does_not_count(tmp_path, end):
    found = by_hand(tmp_path, [topic("b")], [BEGIN, topic("c")], [config("b", "x", "1")], *end)
    assert (list(found.topic_ids), found.topic_configs) == (["b"], {})


@pytest.mark.parametrize("steps", [[BEGIN, BEGIN], [END], [ABORT], [BEGIN, END, END]])
def test_steps_of_a_transaction_out_of_order_are_an_error(tmp_path, steps):
    with pytest.raises(CorruptBatchError, match="is out of order"):
        by_hand(tmp_path, steps)


# --------------------------------------------------------------------------------------------------------------- damage
def test_a_damaged_batch_that_good_ones_follow_is_an_error_with_its_place(broker_dir):
    log = metadata_dir(broker_dir) / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-500] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptBatchError) as caught:
        read(broker_dir)
    assert caught.value.path == str(log) and caught.value.position is not None
    assert "--config" in str(caught.value) and "__cluster_metadata-0" in str(caught.value)


def test_a_damaged_last_batch_ends_the_log_as_a_crash_leaves_it(broker_dir):
    log = metadata_dir(broker_dir) / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-3] ^= 1
    log.write_bytes(content)
    drop_producer_snapshots(broker_dir)
    assert read(broker_dir).end_offset < 252


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("at_a_batch", [False, True])
def test_a_log_that_ends_below_its_producer_snapshot_is_an_error(tmp_path, share, at_a_batch):
    groups = [[topic("b")]] + [[config("b", "retention.ms", str(number))] for number in range(50)]
    log = write_segment(metadata_dir(tmp_path), 0, batches(*groups))
    (metadata_dir(tmp_path) / f"{len(groups):020d}.snapshot").touch()
    assert read(tmp_path).topic_configs == {"b": {"retention.ms": "49"}}
    content = log.read_bytes()
    whole = b"".join(batches(*groups[: int(share * 50)]))
    log.write_bytes(whole if at_a_batch else content[: int(share * len(content))])
    with pytest.raises(CorruptBatchError, match=r"ends at offset \d+, although .* reached offset 51"):
        read(tmp_path)


def test_a_log_that_ends_below_its_last_leader_epoch_is_an_error(tmp_path):
    write_segment(metadata_dir(tmp_path), 0, batches([topic("b")], [NO_OP]))
    epochs = metadata_dir(tmp_path) / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n1 0\n2 2\n")
    assert read(tmp_path).end_offset == 2
    epochs.write_text("0\n2\n1 0\n2 3\n")
    with pytest.raises(CorruptBatchError, match="leader-epoch-checkpoint shows that it once reached offset 3"):
        read(tmp_path)


def test_a_producer_snapshot_that_was_removed_shows_nothing(tmp_path):
    write_segment(metadata_dir(tmp_path), 0, batches([topic("b")]))
    (metadata_dir(tmp_path) / f"{9:020d}.snapshot.deleted").touch()
    assert read(tmp_path).end_offset == 1


def test_zeros_after_the_last_batch_are_no_damage(broker_dir):
    expected = read(broker_dir)
    with (metadata_dir(broker_dir) / f"{0:020d}.log").open("ab") as log:
        log.write(bytes(5_000))
    assert read(broker_dir) == expected


def test_damage_below_the_snapshot_does_not_matter(broker_dir):
    expected = read(broker_dir)
    index = metadata_dir(broker_dir) / f"{0:020d}.index"
    assert index.stat().st_size
    log = metadata_dir(broker_dir) / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    assert read(broker_dir) == expected


def without_log(broker_dir: Path) -> Path:
    """Remove everything but the latest snapshot, and return it."""
    snapshot = max(metadata_dir(broker_dir).glob("*.checkpoint"))
    for path in metadata_dir(broker_dir).iterdir():
        if path != snapshot:
            path.unlink()
    return snapshot


@pytest.mark.parametrize("cut", [1, 60, 300, None])
def test_a_snapshot_without_its_end_is_an_error_if_nothing_else_has_its_records(broker_dir, cut):
    snapshot = without_log(broker_dir)
    snapshot.write_bytes(snapshot.read_bytes()[:-cut] if cut else b"")
    with pytest.raises(CorruptBatchError):
        read(broker_dir)


def test_a_snapshot_that_ends_between_batches_is_an_error(broker_dir):
    snapshot = without_log(broker_dir)
    content = snapshot.read_bytes()
    length = int.from_bytes(content[8:12], "big") + 12
    snapshot.write_bytes(content[:length])
    with pytest.raises(CorruptBatchError, match="has no footer"):
        read(broker_dir)


@pytest.mark.parametrize("kept", [5, 1])
def test_an_older_snapshot_or_none_stands_in_for_the_latest_one_if_the_log_goes_on_from_it(broker_dir, kept):
    expected = read(broker_dir)
    older, latest = (
        sorted(metadata_dir(broker_dir).glob("*.checkpoint"))[:-1],
        max(metadata_dir(broker_dir).glob("*.checkpoint")),
    )
    for path in older[: 5 - kept]:
        path.unlink()
    latest.write_bytes(b"")
    assert read(broker_dir) == replace(expected, unreadable_snapshot=latest.name)


def test_an_older_snapshot_does_not_stand_in_if_the_log_begins_after_it(broker_dir):
    content = (metadata_dir(broker_dir) / f"{0:020d}.log").read_bytes()
    (metadata_dir(broker_dir) / f"{0:020d}.log").unlink()
    whole = [batch for _, batch in file_batches(content) if batch.base_offset >= 149]
    write_segment(metadata_dir(broker_dir), whole[0].base_offset, [batch.data for batch in whole])
    read(broker_dir)
    latest = max(metadata_dir(broker_dir).glob("*.checkpoint"))
    latest.write_bytes(b"")
    with pytest.raises(CorruptBatchError) as raised:
        read(broker_dir)
    assert raised.value.path == str(latest)


def test_a_log_that_ends_below_the_latest_snapshot_does_not_stand_in(broker_dir):
    drop_producer_snapshots(broker_dir)
    (metadata_dir(broker_dir) / "leader-epoch-checkpoint").unlink()
    log = metadata_dir(broker_dir) / f"{0:020d}.log"
    content = log.read_bytes()
    log.write_bytes(b"".join(batch.data for _, batch in file_batches(content) if batch.last_offset < 140))
    read(broker_dir)
    max(metadata_dir(broker_dir).glob("*.checkpoint")).write_bytes(b"")
    with pytest.raises(CorruptBatchError):
        read(broker_dir)


def test_offsets_missing_between_snapshot_and_log_are_an_error(broker_dir):
    shutil.rmtree(metadata_dir(broker_dir))
    write_segment(metadata_dir(broker_dir), 10, batches([topic("b")], base=10))
    with pytest.raises(CorruptBatchError, match="offset 0 of the metadata log is missing"):
        read(broker_dir)


def test_offsets_missing_inside_the_log_are_an_error(tmp_path):
    write_segment(metadata_dir(tmp_path), 0, [*batches([topic("b")]), *batches([config("b", "x", "1")], base=2)])
    with pytest.raises(CorruptBatchError, match="offset 1 of the metadata log is missing"):
        read(tmp_path)


def test_a_missing_segment_is_an_error(tmp_path):
    write_segment(metadata_dir(tmp_path), 0, batches([topic("b")]))
    write_segment(metadata_dir(tmp_path), 5, batches([config("b", "x", "1")], base=5))
    with pytest.raises(CorruptBatchError, match="offset 1 of the metadata log is missing"):
        read(tmp_path)


def test_several_segments_are_read_in_their_order(tmp_path):
    write_segment(metadata_dir(tmp_path), 0, batches([topic("b"), config("b", "x", "1")]))
    write_segment(metadata_dir(tmp_path), 2, batches([config("b", "x", "2")], base=2))
    write_segment(metadata_dir(tmp_path), 3)
    assert read(tmp_path).topic_configs == {"b": {"x": "2"}}


def test_a_torn_segment_that_another_follows_is_an_error(tmp_path):
    log = write_segment(metadata_dir(tmp_path), 0, batches([topic("b")], [NO_OP]))
    write_segment(metadata_dir(tmp_path), 2, batches([NO_OP], base=2))
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(CorruptBatchError):
        read(tmp_path)


def test_a_torn_segment_that_an_empty_one_follows_is_an_error(tmp_path):
    log = write_segment(metadata_dir(tmp_path), 0, batches([topic("b")], [NO_OP]))
    write_segment(metadata_dir(tmp_path), 2)
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(CorruptBatchError, match="offset 1 of the metadata log is missing"):
        read(tmp_path)


def test_what_a_later_kafka_wrote_is_an_error_that_says_where(tmp_path):
    with pytest.raises(UnsupportedDataError) as caught:
        by_hand(tmp_path, [NO_OP, b"\1\4\1" + bytes(10)])
    assert caught.value.offset == 1 and caught.value.partition == "__cluster_metadata-0"


def test_a_deleted_topic_that_was_never_made_is_an_error(tmp_path):
    with pytest.raises(CorruptBatchError, match="never created"):
        by_hand(tmp_path, [remove("c")])


# ------------------------------------------------------------------------------------------------------- leader epochs
def test_a_leader_epoch_begins_with_its_partition_and_rises_with_each_change_of_the_leader(tmp_path):
    wanted = uuid.UUID(bytes=topic_id("a", 1))

    def change(**fields):
        return encode_metadata_record(m.PartitionChangeRecord(partition_id=0, topic_id=wanted, **fields), 0)

    created = m.PartitionRecord(partition_id=0, topic_id=wanted, replicas=[1], isr=[1], leader=1, leader_epoch=4)
    records = [topic("a"), encode_metadata_record(created, 0), change(leader=-1), change(isr=[1]), change(leader=1)]
    found = by_hand(tmp_path, records)
    assert found.leader_epochs == {"a": {0: 6}}
    assert found.replicas == {"a": {0: (1,)}}
    assert by_hand(tmp_path / "removed", [*records, remove("a")]).leader_epochs == {}


def test_a_brokers_logs_have_no_later_epoch_than_its_metadata(tmp_path):
    log_dir = unpacked(tmp_path / "served")
    found = read(log_dir)
    for name, epochs in found.leader_epochs.items():
        for number, epoch in epochs.items():
            entries = read_leader_epochs(Fs(), log_dir / f"{name}-{number}" / "leader-epoch-checkpoint")
            assert entries and 0 <= entries[-1].epoch <= epoch, name
    assert found.leader_epochs.keys() == found.topic_ids.keys()


def test_a_migration_from_zookeeper_lasts_until_its_last_state(tmp_path):
    def state(number):
        return encode_metadata_record(m.ZkMigrationStateRecord(zk_migration_state=number), 0)

    states = [topic("a"), *map(state, (2, 1, 3))]
    found = [by_hand(tmp_path / str(count), states[:count]) for count in range(1, 5)]
    assert [each.is_in_migration for each in found] == [False, True, True, False]
    assert found[2].with_records([topic("b", 2)]).is_in_migration
