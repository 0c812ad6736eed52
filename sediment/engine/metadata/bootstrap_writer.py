"""BootstrapWriter: the metadata of a node that was never started, in its `bootstrap.checkpoint`.

Each `append` replaces the file atomically and durably.

Invariants: the lock of the log directory is held, and the node has no metadata log. If a replacement of the file may
not be durable, nothing more is written.

Source: Kafka 4.2.0, BootstrapDirectory and ActivationRecordsGenerator.recordsForEmptyLog: if the metadata log of a
controller is empty, the controller copies the records of the file to the log, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sediment.engine.live.open_files import open_files_limit, require_spare_descriptors
from sediment.engine.metadata.bootstrap_records import merge_bootstrap_records
from sediment.engine.metadata.metadata_log_writer import has_transactions
from sediment.engine.metadata.metadata_writer import (
    DirectoryFailure,
    DiskFailed,
    MetadataPosition,
    check_metadata_online,
    check_open,
    ignore_disk_failure,
    never_fails,
)
from sediment.segment_io.errors import CommitStateUnknownError, StorageError, UsageError
from sediment.segment_io.format.names import BOOTSTRAP_FILE
from sediment.segment_io.fs import Fs, is_out_of_descriptors
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.segment.fetched_batches import read_records

_MOST_RECORDS_AT_ONCE = 10_000 - 1  # a controller adds a ZkMigrationStateRecord


class BootstrapWriter:
    """The bootstrap checkpoint in `log_dir`, whose lock is held; `clock` returns milliseconds since the epoch.

    `directory_failure` is called before each write. `disk_failed` is called with the error of a write that may or may
    not be durable.
    """

    def __init__(
        self,
        log_dir: Path,
        fs: Fs,
        *,
        clock: Callable[[], int],
        directory_failure: DirectoryFailure = never_fails,
        disk_failed: DiskFailed = ignore_disk_failure,
    ) -> None:
        self._directory_failure = directory_failure
        self._disk_failed = disk_failed
        self._path = log_dir / BOOTSTRAP_FILE
        self._fs = fs
        self._clock = clock
        self._guard = threading.Lock()
        self._is_closed = False
        self._failure: str | None = None
        self._values = [record.value or b"" for record in read_records(fs.read_bytes(self._path))]

    @property
    def position(self) -> MetadataPosition:
        return MetadataPosition(0, len(self._values))

    def append(self, values: Sequence[bytes]) -> None:
        with self._guard:
            check_open(self._path, self._is_closed)
            check_metadata_online(self._path, self._directory_failure)
            if self._failure is not None:
                raise StorageError(
                    f"an earlier change of bootstrap.checkpoint may not be durable: {self._failure}",
                    path=str(self._path),
                    advice="start again",
                )
            require_spare_descriptors(self._fs)
            changed = merge_bootstrap_records(self._values, values)
            if len(changed) > len(self._values):
                _check_fits(changed)
            content = format_bootstrap_checkpoint(changed, now_ms=self._clock())
            before = self._fs.identity(str(self._path))
            try:
                self._fs.replace_file(self._path, content, like=self._path)
            except OSError as error:
                if self._is_still(before):
                    if is_out_of_descriptors(error):
                        raise open_files_limit(error) from error
                    raise StorageError(
                        f"bootstrap.checkpoint could not be replaced: {error.strerror or error}",
                        path=str(self._path),
                        advice="free space or repair the disk, and try again",
                    ) from error
                self._failure = str(error.strerror or error)
                self._disk_failed(error)
                raise CommitStateUnknownError(
                    f"bootstrap.checkpoint may or may not be replaced: {self._failure}",
                    path=str(self._path),
                    advice="repair the disk and start again",
                ) from error
            self._values = changed

    def _is_still(self, identity: tuple[int, int, int] | None) -> bool:
        """Return True if the path still refers to the old file; unlike a read, this check opens no file."""
        try:
            return self._fs.identity(str(self._path)) == identity
        except OSError:
            return False

    def close(self) -> None:
        """Refuse later changes; there is nothing to close, because no file is open between two calls."""
        with self._guard:
            self._is_closed = True


def _check_fits(values: Sequence[bytes]) -> None:
    if len(values) <= _MOST_RECORDS_AT_ONCE:
        return
    if not has_transactions(ClusterMetadata({}, {}, {}, 0, is_bootstrap=True).with_records(values)):
        raise UsageError(
            f"bootstrap.checkpoint would have {len(values)} records, and a controller whose metadata.version supports "
            f"no metadata transactions cannot copy more than {_MOST_RECORDS_AT_ONCE}",
            advice="create fewer partitions, or start a broker on the directory once",
        )
