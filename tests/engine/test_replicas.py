"""Replicas as tasks get them."""

import pickle
from pathlib import Path

from sediment.engine.replicas import ClusterDirectory, Replica
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.log_dir_checkpoints import LogDirCheckpoints


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
