"""The failure of a log directory: it goes offline with its logs until the next start (kafka-log 04 §12).

    1 mark      the error is stored as the directory's failure, and its logs are removed from the manager's maps
    2 offline   each of these logs refuses further use
    3 leave     later, without the lock of the failed log: the files of these logs are closed, and the directory is
                released

Invariant: nothing more is written to a failed directory. The limit on open files is not a disk failure.

Source: Kafka's LogManager.handleLogDirFailure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.open_files import open_files_limit
from sediment.engine.live.scheduler import Scheduler
from sediment.segment_io.errors import SedimentError, StorageError
from sediment.segment_io.fs import is_out_of_descriptors

_LOGGER = logging.getLogger(__name__)


class LogDirFailureHandler:
    """Takes failed log directories offline; every method may be called from any thread."""

    # `remove_logs(directory, failure)` marks a directory as failed, removes its logs from the maps of the manager and
    # returns these logs. The result is None if the directory had failed before.

    def __init__(
        self, remove_logs: Callable[[LogDirectory, str], list[PartitionLog] | None], scheduler: Scheduler
    ) -> None:
        self._remove_logs = remove_logs
        self._scheduler = scheduler

    def report(self, directory: LogDirectory, error: OSError) -> None:
        if is_out_of_descriptors(error):
            _LOGGER.error("%s: %s", directory, open_files_limit(error))
        else:
            self.take_offline(directory, error)

    def take_offline(self, directory: LogDirectory, error: OSError | SedimentError) -> None:
        lost = self._remove_logs(directory, str(error))
        if lost is None:
            return
        # Only the text is logged: if a log handler kept the error, the files in its traceback would stay open.
        _LOGGER.error("log directory %s is offline with its %d logs: %s", directory, len(lost), directory.failure)
        for log in lost:
            log.go_offline(f"its directory failed: {directory.failure}")
        # The logs are closed later.  The close of a log needs the log's lock, and the log that reports the failure
        # still holds its own lock.
        self._scheduler.schedule_once("log-dir-failure", partial(_leave, directory, lost))

    @contextmanager
    def failing(self, directory: LogDirectory) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_out_of_descriptors(error):
                raise open_files_limit(error) from error
            self.take_offline(directory, error)
        except StorageError as error:
            if not directory.is_offline:
                raise
            _LOGGER.error("%s", error)


def _leave(directory: LogDirectory, logs: Iterable[PartitionLog]) -> None:
    for log in logs:
        log.close_handlers()
    directory.release()
