"""BootstrapWriter: the metadata of a node that was never started, in its `bootstrap.checkpoint`.

Each `append` replaces the file, atomically and durably.  To keep the file small, a later ProducerIdsRecord replaces an
earlier one, and a leader change is merged into the record of its partition.

Invariants: the lock of the log directory is held, and the node has no metadata log.

Source: Kafka 4.2.0, BootstrapDirectory and ActivationRecordsGenerator.recordsForEmptyLog: a controller with an empty
metadata log copies the records of the file to the log, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sediment.engine.metadata.leader_changes import is_leader_change, merge_leader_changes
from sediment.engine.metadata.metadata_writer import DirectoryFailure, check_online, never_fails
from sediment.segment_io.errors import CommitStateUnknownError
from sediment.segment_io.format.names import BOOTSTRAP_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record
from sediment.segment_io.segment.batch_reader import read_records

_PRODUCER_IDS = frozenset({"ProducerIdsRecord"})


class BootstrapWriter:
    """The bootstrap checkpoint in `log_dir`, whose lock is held; `clock` returns milliseconds since the epoch.

    `directory_failure` is called before each write.

    Raises:
        CorruptBatchError: the file is corrupt.
        OSError: the file cannot be read.
    """

    def __init__(
        self,
        log_dir: Path,
        fs: Fs,
        *,
        clock: Callable[[], int],
        directory_failure: DirectoryFailure = never_fails,
    ) -> None:
        self._directory_failure = directory_failure
        self._path = log_dir / BOOTSTRAP_FILE
        self._fs = fs
        self._clock = clock
        self._guard = threading.Lock()
        self._values = [record.value or b"" for record in read_records(fs.read_bytes(self._path))]

    def append(self, values: Sequence[bytes]) -> None:
        """Make records durable as one atomic change.

        Raises:
            CommitStateUnknownError: the write was interrupted; the file may or may not contain the records.
            StorageError: the log directory is offline; nothing changed.
        """
        with self._guard:
            check_online(self._path, self._directory_failure)
            kept = merge_leader_changes(self._values, filter(is_leader_change, values))
            if any(map(_is_of_producer_ids, values)):
                kept = [value for value in kept if not _is_of_producer_ids(value)]
            changed = kept + [value for value in values if not is_leader_change(value)]
            content = format_bootstrap_checkpoint(changed, now_ms=self._clock())
            try:
                self._fs.replace_file(self._path, content, like=self._path)
            except OSError as error:
                raise CommitStateUnknownError(
                    f"bootstrap.checkpoint could not be replaced: {error.strerror or error}",
                    path=str(self._path),
                    advice="free space or repair the disk, and try again",
                ) from error
            self._values = changed

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""


def _is_of_producer_ids(value: bytes) -> bool:
    return decode_metadata_record(value, _PRODUCER_IDS) is not None
