"""--hand-off: the cleaned segments are left to the engine that owns the log directories, which commits them.

The run locks the folder of the hand-off instead of the directories.  It completes no replacement, and writes no
checkpoint and no mark, because the engine does all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.directory.lockstep import Steps
from sediment.engine.directory.spool import check_announced, spool_swap
from sediment.jobs.cleaning.in_place import CleanedInPlace
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.reporting.run_report import PartitionReport
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.partition.listing import LogListing

HANDED_OFF = "handed-off"


class HandedOff(CleanedInPlace):
    def __init__(self, run: Run[PartitionReport], own: CompactOptions, folder: Path) -> None:
        super().__init__(run, own)
        self._folder = folder
        self.locked = (folder,)

    def check_places(self) -> None:
        super().check_places()
        check_announced(self._folder, self.run.options.log_dirs, self.run.fs)

    def _is_unclean(self, _directory: SelectedDirectory) -> bool:
        return False  # the engine is running, so no directory counts as cleanly stopped

    def settle(self, listing: LogListing) -> LogListing | None:
        return listing

    def _committed(self, pair: tuple[CleaningTask, CleaningResult]) -> Steps[tuple[PartitionReport, int | None]]:
        task, result = pair
        if result.swap is not None:
            result = replace(result, reason_code=HANDED_OFF, reason=f"in {self._folder}, for the engine to commit")
        return super()._committed((task, result))

    def replace_segments(
        self, swap: PreparedSwap, _done: list[CleanedGroup], *, lowered: int | None = None
    ) -> Steps[bool]:
        yield partial(spool_swap, swap, self._folder, self.run.run_id, self.run.fs)
        self.left_parts[Path(swap.directory)] = {part.part_name for part in swap.parts()}
        return True

    def _record(
        self,
        _pairs: Sequence[tuple[CleaningTask, CleaningResult]],
        _reports: Sequence[PartitionReport],
        _offsets: Sequence[int | None],
    ) -> None:
        """The engine writes its own checkpoint and marks."""
