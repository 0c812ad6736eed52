"""Replicas as tasks get them."""

import pickle
import uuid
from pathlib import Path

from sediment.engine.replicas import ClusterDirectory, Replica, newest_metadata
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from tests.segments import write_segment
from tests.twin.batches import Record, encode_batch


def test_a_replica_that_is_sent_to_a_task_does_not_carry_the_other_partitions_along() -> None:
    partitions = [TopicPartition("t", number) for number in range(1000)]
    every = dict.fromkeys(partitions, 7)
    checkpoints = LogDirCheckpoints(every, every, every, every, clean_shutdown=True)
    replica = Replica(ClusterDirectory(Path("logs"), None, checkpoints, partitions), partitions[3])
    sent = pickle.dumps(replica)
    assert len(sent) < 2000
    there = pickle.loads(sent)
    assert (there.path, there.checkpoints) == (replica.path, replica.checkpoints)
    assert there.directory.partitions == (partitions[3],)


def test_a_metadata_log_beats_a_checkpoint_with_more_records(tmp_path: Path) -> None:
    def topic(number: int) -> bytes:
        return encode_metadata_record(m.TopicRecord(name=f"t{number}", topic_id=uuid.UUID(int=number + 1)), 0)

    (tmp_path / "new").mkdir()
    checkpoint = format_bootstrap_checkpoint([topic(number) for number in range(9)], now_ms=1)
    (tmp_path / "new" / "bootstrap.checkpoint").write_bytes(checkpoint)
    (tmp_path / "new" / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    batch = encode_batch([Record(0, 1, None, topic(20))], base_offset=0, leader_epoch=1)
    write_segment(tmp_path / "old" / "__cluster_metadata-0", 0, [batch])
    paths = [tmp_path / "new", tmp_path / "old"]

    def fail(path: Path, error: Exception) -> None:
        raise error

    found = newest_metadata(paths, Fs(), on_unreadable=fail)
    assert found is not None and set(found.topic_ids) == {"t20"}
    alone = newest_metadata(paths[:1], Fs(), on_unreadable=fail)
    assert alone is not None and len(alone.topic_ids) == 9
