"""MetadataLogWriter: the open metadata log of a node that is the sole voter of its quorum.

    open      check that every batch is good, because a load truncates the log at a bad one; then load the log as every
              start of the node does: cut a torn batch at the end, rebuild indexes
    append    all batches in one write, in the last leader epoch of the log; then sync
    close     producer snapshot at the log end, as after a clean stop

The records take effect at the node's next election.  A sole voter wins it at once, and then every record of its log is
committed.  The log's snapshots remain valid, because they all end below the appended records.

After a crash during `append`, the next start cuts a torn batch, and the controller aborts an unfinished metadata
transaction.  So either all records of the call count, or none.

Invariants: the lock of the log directory is held.  Records that need more than one batch are appended as one metadata
transaction.  After a failed write, or once the log directory is offline, nothing more is written.

Source: Kafka 4.2.0, KafkaRaftLog.createLog (it recovers the whole log at each start), KafkaRaftClient.initialize,
ActivationRecordsGenerator.recordsForNonEmptyLog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.engine.config import LogConfig
from sediment.engine.live.log.local_log import TaskScheduler
from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.engine.metadata.metadata_writer import DirectoryFailure, check_online, never_fails
from sediment.segment_io.errors import CommitStateUnknownError, StorageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.format.names import METADATA_PARTITION
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_batches import (
    abort_batch,
    data_batches,
    needs_transaction,
    transaction_batches,
)
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, check_loadable
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints

_CONFIG = LogConfig(compaction=CompactionConfig(max_message_bytes=INT32_MAX), segment_ms=INT64_MAX)
# A node verifies every batch of its metadata log at each start.
_UNVERIFIED = PartitionCheckpoints(recovery_point=0)


class MetadataLogWriter:
    """The metadata log in `log_dir`, whose lock is held; `metadata` is the cluster state after replaying the log.

    `transaction` names metadata transactions.  `clock` gives milliseconds since the epoch.  `directory_failure` is
    asked before each write.

    Raises:
        CorruptDataError, OSError: the log cannot be loaded; it was not changed.
    """

    def __init__(
        self,
        log_dir: Path,
        metadata: ClusterMetadata,
        fs: Fs,
        *,
        transaction: str,
        clock: Callable[[], int],
        scheduler: TaskScheduler,
        directory_failure: DirectoryFailure = never_fails,
    ) -> None:
        self._directory_failure = directory_failure
        self._transaction = transaction
        self._clock = clock
        self._has_open_transaction = metadata.has_open_transaction
        self._guard = threading.Lock()
        self._failure: str | None = None
        check_loadable(log_dir, metadata.end_offset, fs)
        self._log = PartitionLog.open(
            METADATA_PARTITION,
            log_dir / str(METADATA_PARTITION),
            _CONFIG,
            _UNVERIFIED,
            fs,
            clock=clock,
            scheduler=scheduler,
            verify_transactions=False,
        )

    def append(self, values: Sequence[bytes]) -> None:
        """Make records durable as one change of the cluster.

        Raises:
            CommitStateUnknownError: the write broke off; the log may or may not have the records.
            StorageError: an earlier write failed, or the log directory is offline; nothing changed.
        """
        with self._guard:
            check_online(self._log.directory, self._directory_failure)
            if self._failure is not None:
                raise StorageError(
                    f"an earlier write to the metadata log failed: {self._failure}",
                    path=str(self._log.directory),
                    advice="start again",
                )
            try:
                epoch = self._log.latest_epoch
                batches = b"".join(self._batches(values, self._log.log_end_offset, epoch, self._clock()))
                self._log.append_as_leader(batches, epoch, origin=AppendOrigin.RAFT_LEADER)
                self._log.flush(force_last_segment=True)
            except Exception as error:
                self._failure = str(error)
                raise CommitStateUnknownError(
                    f"the append to the metadata log broke off: {error}",
                    partition=str(METADATA_PARTITION),
                    path=str(self._log.directory),
                    advice="run again: it finds out if the log has the records",
                ) from error
            self._has_open_transaction = False

    def close(self) -> None:
        """Close the files; after a failed write, or if the log directory is offline, write nothing."""
        with self._guard:
            if self._failure is None and self._directory_failure() is None:
                self._log.close()
            else:
                self._log.close_handlers()

    def _batches(self, values: Sequence[bytes], base_offset: int, leader_epoch: int, now_ms: int) -> Iterator[bytes]:
        if self._has_open_transaction:
            # A controller does the same at its start.  Without this batch, the records would join the open transaction.
            yield abort_batch(
                base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, reason=self._transaction
            )
            base_offset += 1
        if needs_transaction(values):
            yield from transaction_batches(
                values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, name=self._transaction
            )
        else:
            yield from data_batches(values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms)
