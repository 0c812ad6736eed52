"""The errors of a cleaning, and the effect of each on one log or on its whole log directory.

    abort                                    the log is not changed
    the disk failed                          the log directory goes offline
    unknown commit, or a lost lock           the log directory goes offline
    an offline log, or a changed source      the log is not changed
    no free descriptors                      the log is not changed
    any other error                          the log is marked uncleanable, unless it was closed

Source: kafka-log 02 §1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sediment.engine.live.cleaner_checkpoints import CleanerCheckpoints, LogOwner
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.open_files import open_files_limit
from sediment.engine.live.scheduler import Clock
from sediment.segment_io.errors import (
    CleaningAbortedError,
    CommitStateUnknownError,
    LockLostError,
    OpenFilesLimitError,
    SourceChangedError,
    StorageError,
)
from sediment.segment_io.fs import is_out_of_descriptors

_LOGGER = logging.getLogger(__name__)


class CleanerOwner(LogOwner, Protocol):
    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None: ...


class CleaningFailures:
    """Handling of errors while logs of `owner` are cleaned; every method may be called from any thread."""

    def __init__(self, owner: CleanerOwner, checkpoints: CleanerCheckpoints, clock: Clock) -> None:
        self._owner = owner
        self._checkpoints = checkpoints
        self._clock = clock

    @contextmanager
    def failing(self, directory: LogDirectory) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_out_of_descriptors(error):
                raise open_files_limit(error) from error
            self._owner.handle_directory_failure(directory, error)

    @contextmanager
    def isolating(self, log: PartitionLog, directory: LogDirectory) -> Iterator[None]:
        """Source: kafka-log 02 §1, the table of outcomes."""
        try:
            with self.failing(directory):
                yield
        except CleaningAbortedError:
            _LOGGER.info("the cleaning of %s was aborted", log.partition)
        except (CommitStateUnknownError, LockLostError) as error:
            self._owner.handle_directory_failure(directory, OSError(str(error)))
        except (StorageError, SourceChangedError, OpenFilesLimitError) as error:
            _LOGGER.warning("%s was not cleaned: %s", log.partition, error)
        except Exception as error:
            if log.is_closed:
                _LOGGER.info("%s was closed while it was being cleaned", log.partition)
            else:
                with self.failing(directory):
                    self._checkpoints.quarantine(log, directory, error, since_ms=self._clock.now_ms())
