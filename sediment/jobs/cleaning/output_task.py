"""Tasks that write one partition to an output, either cleaned or copied byte for byte.

* In place: the task reads the source in ranges, and writes parts straight to the output.  It makes no scratch file.
* In a working directory: only if files must change first (an interrupted replacement, or a roll of the active segment).
  The directory has links to the files of the partition, or copies if the source is a URI.
* In splits: as in place, but many tasks clean.  Each task publishes the segments of its split, and other tasks copy the
  files that stay unchanged.

Tasks write only new files to the output, and a file belongs to the result only if the manifest names it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.compaction.write_behind import WriteBehind
from sediment.engine.copying.stand_in import errors_naming
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted, is_interrupted
from sediment.engine.directory.output import PublishingFs, SourcePublishingFs, file_chunks
from sediment.engine.directory.swap import replaced_files
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.cleaning.task import roll_active, start_cleaning
from sediment.jobs.publishing.partition_output import PartitionOutput, is_left_out
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.rewriting.figures import of_cleaning
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failed_task
from sediment.jobs.spark.task_environment import OnBytes, throttled
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.buffers import count_bytes
from sediment.segment_io.errors import NoSpaceError, SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.stores import CHUNK_BYTES

_LOCAL = Fs()


@dataclass(frozen=True, slots=True)
class PublishTask(PartitionOutput):
    cleaning: CleaningTask | None = None
    scratch: Path | None = None

    def staying_after(self, swap: PreparedSwap | None, listing: LogListing) -> tuple[str, ...]:
        return self.staying(listing.path, () if swap is None else swap.groups)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Outcome of a partition: its `files` in the output; after a failure, the `error` (reason code, text) instead.

    If the partition was cleaned, `cleaning` is the result, and `listing` is the log before the run; otherwise, both are
    None.
    """

    files: tuple[ManifestFile, ...] | None
    cleaning: CleaningResult | None = None
    listing: LogListing | None = None
    error: tuple[str, str] | None = None

    def asks_for_splits(self) -> bool:
        return self.cleaning is not None and self.cleaning.asks_for_splits()


def of_publishing(task: object, result: PublishResult) -> Figures:
    if result.files is None:
        return Figures()
    swap = None if result.cleaning is None else result.cleaning.swap
    new_bytes = 0 if swap is None else sum(part.size_bytes for part in swap.parts())
    copied_bytes = max(0, sum(file.size_bytes for file in result.files) - new_bytes)  # a dry run copies nothing
    cleaned = Figures() if result.cleaning is None else of_cleaning(task, result.cleaning)
    return cleaned._replace(
        bytes_read=cleaned.bytes_read + copied_bytes, bytes_written=cleaned.bytes_written + copied_bytes
    )


def publish_partition(task: PublishTask, attempt: str) -> PublishResult:
    try:
        with throttled(task.rate_limit) as on_bytes:
            task.check_listed()
            cleaning = task.cleaning
            if cleaning is None:
                return PublishResult(task.copied(task.files, attempt, on_bytes))
            if cleaning.options.roll_active or is_interrupted(task.files):
                with _working_directory(task, on_bytes) as work:
                    return _cleaned_copy(task, cleaning, work, attempt, on_bytes)
            return _cleaned_in_place(task, cleaning, attempt, on_bytes)
    except (SedimentError, OSError) as error:
        return PublishResult(None, error=describe(error))


# ------------------------------------------------------------------------------------------------------------ in place
def _cleaned_in_place(task: PublishTask, cleaning: CleaningTask, attempt: str, on_bytes: OnBytes) -> PublishResult:
    """The driver's listing has only file names and sizes; every file is compared with this listing when it is read."""
    fs = _source_fs(task, on_bytes)
    try:
        with errors_naming(task.shown, cleaning.listing.path), WriteBehind() as writer:
            result = start_cleaning(cleaning, fs, on_bytes, attempt, writer).finish()
    except TASK_ERRORS as error:
        result = failed_task(cleaning, error)
        fs.discard()
    if task.dry_run or result.to_split is not None:
        return PublishResult((), result, cleaning.listing)
    taken = [fs.take(part) for part in result.swap.parts()] if result.swap is not None else []
    kept = task.copied(task.staying_after(result.swap, cleaning.listing), attempt, on_bytes)
    return PublishResult((*taken, *kept), result, cleaning.listing)


def _source_fs(task: PublishTask, on_bytes: OnBytes) -> SourcePublishingFs:
    if not task.dry_run:
        task.make_folder()
    return task.source_fs(on_bytes)


# ---------------------------------------------------------------------------------------------- in a working directory
@contextmanager
def _working_directory(task: PublishTask, on_bytes: OnBytes) -> Iterator[Path]:
    """Yield a directory that contains the partition's files as links or as copies.

    The caller may rename these files, but must not write to them.
    """
    top = Path(tempfile.mkdtemp(prefix=f"sediment-{task.run_id}-", dir=task.scratch))
    try:
        work = top / task.folder
        work.mkdir()
        if task.source.is_path:
            for name in task.files:
                (work / name).symlink_to(Path(task.source.where) / task.folder / name)
        else:
            _fetch(task, work, on_bytes)
        yield work
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _fetch(task: PublishTask, work: Path, on_bytes: OnBytes) -> None:
    needed, free = task.weight(), _LOCAL.free_bytes(work)
    if free < needed:
        raise NoSpaceError(
            f"the partition has {needed} bytes, and the scratch disk has {free} bytes free",
            partition=task.folder,
            path=str(work),
            advice="name a directory on a larger disk with --scratch",
        )
    for name, file in task.files.items():
        _LOCAL.write_new(
            work / name, count_bytes(task.source.chunks(f"{task.folder}/{name}"), on_bytes, most_bytes=CHUNK_BYTES)
        )
        _LOCAL.set_mtime_ns(work / name, file.mtime_ns)


def _cleaned_copy(
    task: PublishTask, cleaning: CleaningTask, work: Path, attempt: str, on_bytes: OnBytes
) -> PublishResult:
    publisher = task.publisher()
    fs = PublishingFs(publisher, task.folder, on_bytes, source=task.source)
    if publisher is not None:
        task.make_folder()
    whole = cleaning.as_whole()
    try:
        with errors_naming(task.shown, work):
            if finish_interrupted(work, fs):
                ready = replace(whole, listing=list_log(task.partition, work, fs))
            else:
                ready = replace(whole, listing=replace(cleaning.listing, path=work))
            if cleaning.options.roll_active:
                ready = roll_active(ready, fs)
            with WriteBehind() as writer:
                result = start_cleaning(ready, fs, on_bytes, attempt, writer).finish()
            listing = replace(ready.listing, path=cleaning.listing.path)
    except TASK_ERRORS as error:
        listing, result = cleaning.listing, failed_task(cleaning, error)
        fs.discard()
    if publisher is None:
        return PublishResult((), result, listing)
    files: list[ManifestFile] = []
    gone: set[str] = set()
    if result.swap is not None:
        gone = {name for group in result.swap.groups for name in replaced_files(work, group, _LOCAL)}
        files += [fs.take(part) for part in result.swap.parts()]
    for entry in _LOCAL.scan(work):
        if entry.name not in gone and not is_left_out(entry.name):
            chunks = count_bytes(file_chunks(work / entry.name, entry.size_bytes), on_bytes, most_bytes=CHUNK_BYTES)
            name = f"{task.folder}/{entry.name}"
            mode = task.source.mode(name)
            files.append(publisher.publish(name, chunks, attempt=attempt, mtime_ns=entry.mtime_ns, mode=mode))
    task.output.sync(task.folder)
    return PublishResult(tuple(files), result, listing)
