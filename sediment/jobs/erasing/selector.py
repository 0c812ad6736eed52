"""The records to erase from each partition, and the action: from keys, a condition or a table of verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.verdicts import Action, Int64s, Verdicts
from sediment.jobs.erasing.find_records import FoundRecords, KeysAt, OlderRecords, ScanRun, around
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.erasing.report import EraseReport
from sediment.jobs.erasing.subjects import Condition, Keys, read_condition, read_keys
from sediment.jobs.erasing.verdict_table import (
    DROP,
    TOMBSTONE,
    GivenVerdict,
    read_verdicts,
    uniform_verdicts,
    verdicts_of,
)
from sediment.jobs.reporting.figures import counted
from sediment.jobs.rewriting.destination import SegmentDestination
from sediment.jobs.rewriting.planned_partition import SelectedPartition
from sediment.jobs.rewriting.result import CleaningResult, failure
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.unstated_settings import POLICY_UNKNOWN
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.slices import Bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDER_RECORDS = "older-records"
CONDITION_FAILED = "condition-failed"

NO_OFFSETS = np.zeros(0, dtype=np.int64)

Subject = Keys | Condition | Mapping[TopicPartition, tuple[GivenVerdict, ...]]


def read_subject(own: EraseOptions) -> Subject:
    if own.keys_file is not None:
        return read_keys(own.keys_file, own.key_format)
    if own.where is not None:
        return read_condition(own.where)
    assert own.verdicts is not None
    return read_verdicts(own.verdicts)


@dataclass(frozen=True, slots=True)
class ErasureSelection:
    action: str | None
    verdicts: Verdicts
    scanned: int | None


class ErasureSelector:
    """Finds the records to erase in each partition, and the action; `older_keys` are numbers of keys, by directory."""

    def __init__(
        self,
        run: Run[EraseReport],
        own: EraseOptions,
        destination: SegmentDestination[EraseReport],
        subject: Subject,
        replacement: bytes | None,
        register: Callable[[SparkSession], None],
    ) -> None:
        self._run = run
        self._own = own
        self._destination = destination
        self._subject = subject
        self._replacement = replacement
        self._register = register
        self.older_keys: dict[Path, int] = {}

    def action_in_one_scan(self, selected: SelectedPartition) -> str | None:
        """Return the action if one scan can search and rewrite the partition; None if a search must come first."""
        listing = selected.listing
        # Before the search, it is unknown which segments must be rewritten, so the disk must have space for all of
        # them.
        if not isinstance(self._subject, Keys) or self._destination.free_bytes(listing) < listing.log_bytes():
            return None
        return self._action_for(selected)

    def found(
        self, scans: ScanRun, by_path: Mapping[Path, SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, FoundRecords | tuple[GivenVerdict, ...] | CleaningResult]]:
        if isinstance(self._subject, Keys):
            partitions = [
                (
                    each.listing,
                    self._destination.place_of(each.listing),
                    each.config.compaction.max_decompressed_batch_bytes,
                )
                for each in by_path.values()
            ]
            for path, found in scans.find_keys(partitions, KeySet.of(self._subject.values)):
                yield by_path[path], found
            return
        if isinstance(self._subject, Condition):
            for path, matching in self.matching(self._subject.text, list(by_path)):
                if isinstance(matching, CleaningResult):
                    yield by_path[path], matching
                else:
                    yield by_path[path], FoundRecords(-1, matching)
            return
        unknown = self._subject.keys() - {each.partition for each in by_path.values()}
        if unknown:
            raise UsageError(
                f"the table of verdicts names {min(unknown)}, which is not among the selected partitions",
                advice="select this partition, or remove its rows from the table",
            )
        for each in by_path.values():
            yield each, self._subject.get(each.partition, ())

    def matching(self, condition: str, directories: Sequence[Path]) -> Iterator[tuple[Path, Int64s | CleaningResult]]:
        from sediment.jobs.erasing.condition_query import ConditionFailedError, matching_offsets
        from sediment.jobs.spark.session import create_session

        session = self._run.stack.enter_context(
            create_session(self._run.options.master, f"sediment {self._run.command}", self._run.options.spark)
        )
        self._register(session)
        for log_dir in dict.fromkeys(path.parent for path in directories):
            groups = [[path for path in directories if path.parent == log_dir]]
            while groups:
                group = groups.pop()
                try:
                    offsets = matching_offsets(session, condition, group, group=self._run.run_id)
                except ConditionFailedError as error:
                    if len(group) > 1:
                        groups += [[path] for path in group]
                        continue
                    yield group[0], failure(CONDITION_FAILED, f"Spark could not evaluate the condition: {error}")
                    continue
                for path in group:
                    yield path, offsets.get(path.name, NO_OFFSETS)

    def judged(
        self, selected: SelectedPartition, found: FoundRecords | tuple[GivenVerdict, ...]
    ) -> ErasureSelection | CleaningResult:
        action = self._action_for(selected)
        if isinstance(found, FoundRecords):
            if action is None and found.offsets.size:
                return _policy_unknown(selected)
            verdicts = uniform_verdicts(found.offsets, action or DROP, self._replacement or b"")
            return ErasureSelection(action, verdicts, None if found.scanned < 0 else found.scanned)
        try:
            given = verdicts_of(found, action, self._replacement)
        except SedimentError as error:
            error.partition = str(selected.partition)
            raise
        return _policy_unknown(selected) if given is None else ErasureSelection(self._own.action, given, None)

    def _action_for(self, selected: SelectedPartition) -> str | None:
        if self._own.action is not None:
            return self._own.action
        if not selected.config.compacts and not _has_policy(selected):
            return None
        return TOMBSTONE if selected.config.compacts else DROP

    def without_older(
        self, scans: ScanRun, chosen: Sequence[tuple[SelectedPartition, ErasureSelection]]
    ) -> Iterator[tuple[SelectedPartition, ErasureSelection | CleaningResult]]:
        """Yield each selection after checking that no older record with a dropped key remains in a compacted log.

        With --all-versions, the older records are also dropped.
        """
        risky: dict[Path, tuple[SelectedPartition, ErasureSelection]] = {}
        for each, selection in chosen:
            dropped = selection.verdicts.offsets[selection.verdicts.actions == Action.DROP]
            is_compacted = each.config.compacts or not _has_policy(each)
            # A run with --keys-file needs no check, because it matches all records of a key.
            if isinstance(self._subject, Keys) or not dropped.size or not is_compacted:
                yield each, selection
            else:
                risky[each.listing.path] = each, selection
        if not risky:
            return
        dropped_at = {
            path: selection.verdicts.offsets[selection.verdicts.actions == Action.DROP]
            for path, (_, selection) in risky.items()
        }
        newest: dict[Path, dict[bytes, int]] = {}
        listings = [each.listing for each, _ in risky.values()]
        bounds = {path: around(offsets) for path, offsets in dropped_at.items()}
        for listing, found in scans.scan(listings, KeysAt(dropped_at), bounds=bounds, with_keys=True):
            if isinstance(found, CleaningResult):
                yield risky.pop(listing.path)[0], found
            else:
                newest[listing.path] = _newest(found)
        judged = {path: selection.verdicts.offsets for path, (_, selection) in risky.items()}
        below = {path: Bounds(end_offset=int(dropped_at[path][-1])) for path in risky}
        listings = [each.listing for each, _ in risky.values()]
        for listing, found in scans.scan(listings, OlderRecords(newest, judged), bounds=below, with_keys=True):
            each, selection = risky[listing.path]
            if isinstance(found, CleaningResult):
                yield each, found
                continue
            self.older_keys[listing.path] = len(set(found.keys))
            yield each, self._with_older(selection, found)

    def _with_older(self, selection: ErasureSelection, older: FoundRecords) -> ErasureSelection | CleaningResult:
        keys = len(set(older.keys))
        if not keys:
            return selection
        if self._own.all_versions:
            return replace(selection, verdicts=_joined(selection.verdicts, uniform_verdicts(older.offsets, DROP, b"")))
        return failure(
            OLDER_RECORDS,
            f"{counted(keys, 'key')} would lose the newest record, and an older value would become current again; use"
            " --action tombstone, or --all-versions to drop the older ones too",
        )


def _policy_unknown(selected: SelectedPartition) -> CleaningResult:
    topic = selected.partition.topic
    how = selected.settings.how_to_state(topic, "cleanup.policy")
    return failure(POLICY_UNKNOWN, f"cleanup.policy is not stated, so no action is safe; give --action, or {how}")


def _has_policy(selected: SelectedPartition) -> bool:
    return selected.settings.is_stated(selected.partition.topic, "cleanup.policy")


def _newest(found: FoundRecords) -> dict[bytes, int]:
    """Return the largest dropped offset of each key; leave out records without a key, which have no older versions."""
    newest: dict[bytes, int] = {}
    for key, offset in zip(found.keys, found.offsets.tolist(), strict=True):
        if key is not None:
            newest[key] = max(offset, newest.get(key, offset))
    return newest


def _joined(one: Verdicts, other: Verdicts) -> Verdicts:
    """Return the verdicts of both arguments; they have no common offset, and `other` never has the action replace."""
    offsets = np.concatenate([one.offsets, other.offsets])
    order = np.argsort(offsets, kind="stable")
    sizes = np.concatenate([np.diff(one.edges), np.diff(other.edges)])[order]
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Verdicts(offsets[order], np.concatenate([one.actions, other.actions])[order], edges, one.replacements)
