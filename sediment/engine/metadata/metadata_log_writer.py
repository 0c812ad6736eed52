"""MetadataLogWriter: the open metadata log of a node that is the sole voter of its quorum.

    open      check that every batch is good, because a load truncates the log at a bad batch; then load the log as
              every start of the node does: cut a torn batch at the end, and rebuild indexes
    append    append all batches in one write, in the last leader epoch of the log; then sync
    close     write a producer snapshot at the log end, as after a clean stop

The records take effect at the node's next election. A sole voter wins this election immediately, and then every record
of its log is committed. The snapshots of the log remain valid, because all of them end below the appended records.

After a crash during `append`, the next start cuts a torn batch, and the controller aborts an unfinished metadata
transaction.

Invariants: the lock of the log directory is held. Records are appended as one metadata transaction if they need more
than one batch, add partitions or remove topics. The name of the transaction shows that a server made the change. After
a failed write, or after the log directory went offline, nothing more is written.

Source: Kafka 4.2.0, KafkaRaftLog.createLog (it recovers the whole log at each start), KafkaRaftClient.initialize,
ActivationRecordsGenerator.recordsForNonEmptyLog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.engine.live.log.local_log import TaskScheduler
from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.engine.live.open_files import require_spare_descriptors
from sediment.engine.log_config import LogConfig
from sediment.engine.metadata.metadata_writer import (
    DirectoryFailure,
    DiskFailed,
    MetadataPosition,
    check_metadata_online,
    check_open,
    ignore_disk_failure,
    never_fails,
)
from sediment.engine.metadata.topic_records import METADATA_VERSION
from sediment.segment_io.errors import CommitStateUnknownError, OpenFilesLimitError, StorageError, UsageError
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
from sediment.segment_io.internal_topics.metadata_records import record_type
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.protocol import messages as m

_CONFIG = LogConfig(compaction=CompactionConfig(max_message_bytes=INT32_MAX), segment_ms=INT64_MAX)
# A node verifies every batch of its metadata log at each start.
_UNVERIFIED = PartitionCheckpoints(recovery_point=0)
_TRANSACTIONS_SINCE = 13  # the lowest metadata.version with metadata transactions: 3.6-IV1
_IN_TRANSACTIONS = frozenset({m.PartitionRecord.API_KEY, m.RemoveTopicRecord.API_KEY})


class MetadataLogWriter:
    """The metadata log in `log_dir`, whose lock is held; `metadata` is the cluster state after replaying the log.

    `directory_failure` is called before each write; `disk_failed` is called with the error of a failed disk.
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
        disk_failed: DiskFailed = ignore_disk_failure,
    ) -> None:
        self._directory_failure = directory_failure
        self._fs = fs
        self._metadata = metadata
        self._transaction = transaction
        self._clock = clock
        self._has_open_transaction = metadata.has_open_transaction
        self._guard = threading.Lock()
        self._failure: str | None = None
        self._is_closed = False
        check_loadable(log_dir, metadata.end_offset, fs)
        self._log = PartitionLog.open(
            METADATA_PARTITION,
            log_dir / str(METADATA_PARTITION),
            _CONFIG,
            _UNVERIFIED,
            fs,
            clock=clock,
            scheduler=scheduler,
            on_failure=lambda _, error: disk_failed(error),
            verify_transactions=False,
        )

    @property
    def position(self) -> MetadataPosition:
        return MetadataPosition(self._log.latest_epoch, self._log.log_end_offset)

    def append(self, values: Sequence[bytes]) -> None:
        check_fits(values, self._metadata)
        with self._guard:
            check_open(self._log.directory, self._is_closed)
            check_metadata_online(self._log.directory, self._directory_failure)
            if self._failure is not None:
                raise StorageError(
                    f"an earlier write to the metadata log failed: {self._failure}",
                    path=str(self._log.directory),
                    advice="start again",
                )
            require_spare_descriptors(self._fs)
            epoch, end_offset = self._log.latest_epoch, self._log.log_end_offset
            try:
                batches = b"".join(self._batches(values, end_offset, epoch, self._clock()))
                self._log.append_as_leader(batches, epoch, origin=AppendOrigin.RAFT_LEADER)
                self._log.flush(force_last_segment=True)
            except Exception as error:
                if isinstance(error, OpenFilesLimitError) and self._log.log_end_offset == end_offset:
                    raise
                self._failure = str(error)
                raise CommitStateUnknownError(
                    f"the append to the metadata log was interrupted: {error}",
                    partition=str(METADATA_PARTITION),
                    path=str(self._log.directory),
                    advice="run again; the next run checks whether the log contains the records",
                ) from error
            self._has_open_transaction = False

    def close(self) -> None:
        """Refuse later changes, and close the files; if a write or the directory has failed, write nothing."""
        with self._guard:
            self._is_closed = True
            if self._failure is None and self._directory_failure() is None:
                self._log.close()
            else:
                self._log.close_handlers()

    def _batches(self, values: Sequence[bytes], base_offset: int, leader_epoch: int, now_ms: int) -> Iterator[bytes]:
        if self._has_open_transaction:
            # A controller does the same at its start.  Without this batch, the records would become part of the open
            # transaction.
            yield abort_batch(
                base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, reason=self._transaction
            )
            base_offset += 1
        has_mark = has_transactions(self._metadata) and any(record_type(each) in _IN_TRANSACTIONS for each in values)
        if has_mark or needs_transaction(values):
            yield from transaction_batches(
                values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, name=self._transaction
            )
        else:
            yield from data_batches(values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms)


def check_fits(values: Sequence[bytes], metadata: ClusterMetadata) -> None:
    if needs_transaction(values) and not has_transactions(metadata):
        raise UsageError(
            f"{len(values)} records need a metadata transaction, which the cluster's metadata.version "
            f"{metadata.features.get(METADATA_VERSION, 0)} does not support",
            advice="upgrade metadata.version first, or make several smaller changes",
        )


def has_transactions(metadata: ClusterMetadata) -> bool:
    return metadata.features.get(METADATA_VERSION, 0) >= _TRANSACTIONS_SINCE
