"""Steps that begin and complete the catalogue of the original files that a run keeps."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import (
    Catalogue,
    OriginalPartition,
    log_dir_before,
    partition_before,
    segment_file_names,
)
from sediment.jobs.reporting.error_text import describe
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, read_checkpoints
from sediment.segment_io.partition.listing import LogListing

if TYPE_CHECKING:
    from sediment.jobs.command_line.options import CommonOptions

_LOGGER = logging.getLogger(__name__)

_SECRET = re.compile(r"pass|secret|credential|token|jaas|sasl|private|keystore|access.?key", re.IGNORECASE)
_HIDDEN = "(hidden)"
_USER_OF_URI = re.compile(r"(?<=://)[^/@]*@")
_QUERY_OF_URI = re.compile(r"(://[^?#]*)[?#].*", re.DOTALL)


class Reported(Protocol):
    """Report of one partition."""

    @property
    def partition(self) -> str:
        """Name of the partition."""
        ...

    @property
    def log_dir(self) -> str:
        """Log directory."""
        ...

    @property
    def status(self) -> str:
        """Outcome."""
        ...


def catalogue_of_run(
    options: CommonOptions,
    command: str,
    run_id: str,
    checkpoints: Mapping[Path, LogDirCheckpoints],
    partitions: Iterable[OriginalPartition],
    *,
    restores: str | None = None,
) -> Catalogue:
    """Return the catalogue of a run of `command` that has removed no file yet; `checkpoints` is keyed by log directory.

    `restores` is the id of the run that `restore` undoes.
    """
    return Catalogue(
        run_id=run_id,
        command=command,
        arguments=arguments_without_secrets(options.log_dirs, options.given),
        now_ms=options.now_ms,
        started_ms=time.time_ns() // 1_000_000,
        log_dirs=tuple(log_dir_before(path, found) for path, found in checkpoints.items()),
        partitions=tuple(partitions),
        restores=restores,
    )


def begin_originals(
    options: CommonOptions, command: str, run_id: str, target: Path, listings: Iterable[LogListing], fs: Fs
) -> tuple[BackupLinks, list[tuple[LogListing, str, str]]]:
    """Write the catalogue of the files that a run may replace, before any of them is replaced.

    Returns the originals, and the listings of partitions whose files cannot be read, each with reason code and text.
    Those partitions are not in the catalogue and must not be changed.

    Raises:
        OSError: the catalogue could not be written, so no file may be replaced.
    """
    failed: list[tuple[LogListing, str, str]] = []
    before: list[OriginalPartition] = []
    checkpoints = {path: read_checkpoints(path, fs) for path in options.log_dirs}
    for listing in listings:
        try:
            names = segment_file_names(listing.path, fs)
            known = checkpoints[listing.path.parent]
            before.append(partition_before(listing.partition, listing.path, known, names, None, fs))
        except (SedimentError, OSError) as error:
            failed.append((listing, *describe(error)))
    originals = BackupLinks(target, catalogue_of_run(options, command, run_id, checkpoints, before), fs)
    originals.begin()
    return originals, failed


def end_originals(originals: BackupLinks, reports: Iterable[Reported]) -> Path | None:
    """Complete the catalogue of a run; return its path, or None if no file was removed.

    An error is logged, not raised, because the run is done and the planned catalogue is still correct.
    """
    statuses = {(report.log_dir, report.partition): report.status for report in reports}
    try:
        return originals.end(statuses, time.time_ns() // 1_000_000)
    except (SedimentError, OSError) as error:
        _LOGGER.warning(
            "%s: the catalogue cannot be completed and stays in state planned: %s", originals.path, describe(error)[1]
        )
        return originals.path


def arguments_without_secrets(log_dirs: Iterable[Path], given: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the log directories and the given options, without passwords and other secrets."""
    options = [name if not value else f"{name}={without_secret(value)}" for name, value in given]
    return (*(without_secret(str(path)) for path in log_dirs), *options)


def without_secret(value: str) -> str:
    """Return an option's value with secrets hidden; a URI also loses its user and its query."""
    public = _QUERY_OF_URI.sub(r"\1", _USER_OF_URI.sub("", value))
    key, is_pair, _ = public.partition("=")
    return f"{key}={_HIDDEN}" if is_pair and _SECRET.search(key) else public
