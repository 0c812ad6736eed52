"""ClusterMetadata: what the KRaft metadata log in a log directory says of topics and configs.

    latest <end offset>-<epoch>.checkpoint ──> the state up to its end offset (exclusive)
    batches from that offset on ─────────────> the changes since

What counts as said: every whole batch with a right checksum, up to the log's end.  How far the quorum had accepted them
when the node stopped is written nowhere on disk.  With one controller a batch on disk is accepted; with several the
last batches may be such as the quorum never accepted, changes whose author never had an answer.  A metadata transaction
that is open at the end, or was aborted, is not applied.

Invariants: nothing is written.  Nothing is left out unnoticed: a gap between the snapshot and the log or inside the
log, a snapshot without its end, a damaged batch that good ones follow, and a log that ends below an offset which its
other files show it had are errors; only what a crash leaves behind the last whole batch ends the log there, as a start
of the node would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sediment.segment_io.compiled.status import BAD_CRC
from sediment.segment_io.errors import CorruptBatchError, SedimentError, SourceChangedError
from sediment.segment_io.format.layout import (
    CONTROL_BIT,
    INT64_MAX,
    INT64_MIN,
)
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, METADATA_PARTITION, SegmentFileKind, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    TransactionStep,
    decode_metadata_record,
)
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import Bounds, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.columns import WANT_VALUE, BadBatchError, RecordColumns, check_batches
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, batch_error
from sediment.segment_io.segment.recovery_scan import find_batches_after

ALL_BROKERS = ""

_SNAPSHOT_NAME = re.compile(r"([0-9]{20,})-([0-9]{10,})\.checkpoint")
_SNAPSHOT_FOOTER = 4  # type of the control record that ends a snapshot
_ATTEMPTS = 5
_ADVICE = (
    "restore the directory from a backup, or work on a copy without __cluster_metadata-0 and say the topics' settings "
    "with --config and --set"
)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Topics by name with their ids (22 characters), and configs; `end_offset` is behind the last record that counts.

    A topic without configs of its own has no entry in `topic_configs`.  `broker_configs` are by node id as text, those
    of all brokers under ALL_BROKERS.
    """

    topic_ids: Mapping[str, str]
    topic_configs: Mapping[str, Mapping[str, str]]
    broker_configs: Mapping[str, Mapping[str, str]]
    end_offset: int

    def configs_of_broker(self, node_id: int | None) -> dict[str, str]:
        """The dynamic configs of a broker over those of all brokers; only the latter where its id is not known."""
        own = {} if node_id is None else self.broker_configs.get(str(node_id), {})
        return {**self.broker_configs.get(ALL_BROKERS, {}), **own}


def read_cluster_metadata(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    """What the metadata log in `log_dir` says; None where the directory has none, or one without a record.

    Raises:
        CorruptBatchError: something of it is damaged or missing.
        CorruptCheckpointError: its leader epochs cannot be read.
        UnsupportedDataError: a later Kafka wrote it.
        SourceChangedError: a node that runs replaces its files faster than they can be read.

    Source: KIP-595, KIP-630, KIP-868; Kafka 4.2.0.
    """
    directory = log_dir / str(METADATA_PARTITION)
    if not fs.is_directory(directory):
        return None
    for _ in range(_ATTEMPTS):
        snapshot = latest_snapshot(entry.name for entry in fs.scan(directory))
        try:
            return _read(directory, snapshot, fs)
        except FileNotFoundError:
            continue
        except SedimentError as error:
            if latest_snapshot(entry.name for entry in fs.scan(directory)) != snapshot:
                continue
            error.partition = str(METADATA_PARTITION)
            error.path = error.path or str(directory)
            error.advice = _ADVICE
            raise
    raise SourceChangedError(
        "the metadata log's files are replaced faster than they can be read",
        partition=str(METADATA_PARTITION),
        path=str(directory),
        advice="run again",
    )


def latest_snapshot(names: Iterable[str]) -> tuple[int, int, str] | None:
    """End offset, epoch and name of the latest finished snapshot among the files of a metadata log."""
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := _SNAPSHOT_NAME.fullmatch(name))]
    return max(found, default=None)


def _read(directory: Path, snapshot: tuple[int, int, str] | None, fs: Fs) -> ClusterMetadata | None:
    reached = _offsets_reached(directory, fs)  # before the log is read: a node that runs appends to it
    state = _State()
    end_offset = 0
    if snapshot is not None:
        end_offset, _, name = snapshot
        _read_snapshot(directory / name, state)
    source = Source(METADATA_PARTITION, directory)
    segments = live_segments(source, fs)
    slices = plan_slices(source, Bounds(first_offset=end_offset), fs)
    for piece in slices:
        walk = _VerifiedWalk(piece.path, piece.start_position, piece.end_position)
        walk.apply(state, end_offset, in_order=True)
        end_offset = max(end_offset, walk.next_offset)
        if walk.stopped is not None:
            behind = find_batches_after(piece.path, walk.stopped.position or 0, piece.end_position, end_offset)
            if piece is not slices[-1] or behind.good_batches:
                raise walk.stopped
    if segments and segments[-1].base_offset > end_offset:
        raise _missing(end_offset, segments[-1].path(directory, SegmentFileKind.LOG))
    farthest, witness = max(reached, default=(0, ""))
    if farthest > end_offset:
        raise CorruptBatchError(
            f"the metadata log ends at offset {end_offset}, although {witness} shows that it reached offset {farthest}",
            path=str(directory),
        )
    return state.metadata(end_offset) if end_offset else None


def _offsets_reached(directory: Path, fs: Fs) -> list[tuple[int, str]]:
    """Return end offsets that the log once had, each with the name of the file that shows it.

    A producer snapshot is named after the log's end, which a clean stop leaves; a leader epoch begins there.  Both are
    made after everything below them was written, so that a log that ends below is a copy that was cut off.
    """
    names = [(name, parse_segment_file(name)) for name in (entry.name for entry in fs.scan(directory))]
    ends = [(file, name) for name, file in names if file and file.kind is SegmentFileKind.SNAPSHOT and not file.state]
    found = [(file.base_offset, name) for file, name in ends]
    epochs = read_leader_epochs(fs, directory / LEADER_EPOCH_FILE) or ()
    return found + [(entry.start_offset, LEADER_EPOCH_FILE) for entry in epochs]


def _missing(offset: int, path: Path) -> CorruptBatchError:
    return CorruptBatchError(f"offset {offset} of the metadata log is missing", path=str(path))


def _read_snapshot(path: Path, state: _State) -> None:
    walk = _VerifiedWalk(path, 0, None)
    walk.apply(state, INT64_MIN, in_order=False)
    if walk.stopped is not None:
        raise walk.stopped
    if walk.last_control_type != _SNAPSHOT_FOOTER:
        raise CorruptBatchError("the snapshot has no end", path=str(path))


class _VerifiedWalk:
    """The batches of one file up to the first that is not whole and right, which `stopped` then tells of.

    `next_offset` is behind the last of them, `last_control_type` is that of the last one.
    """

    def __init__(self, path: Path, start_position: int, end_position: int | None) -> None:
        self.stopped: CorruptBatchError | None = None
        self.next_offset = INT64_MIN
        self.last_control_type = -1
        self._path = path
        self._size_bytes = path.stat().st_size if end_position is None else end_position
        self._walk = HeaderScan(path, start_position, size_bytes=self._size_bytes)

    def apply(self, state: _State, first_offset: int, *, in_order: bool) -> None:
        """Let `state` have every record from `first_offset` on; with `in_order` no offset from there on may be missing.

        Raises:
            CorruptBatchError: offsets are missing, or a batch whose checksum is right holds what Kafka does not write.
            UnsupportedDataError: a record of a later Kafka.
        """
        for span in self._good_spans():
            if in_order:
                self._check_order(span, max(first_offset, self.next_offset))
            self.next_offset = int(span.rows["last_offset"][-1]) + 1
            self.last_control_type = int(span.rows["control_type"][-1])
            self._apply_records(span, state, first_offset)

    def _good_spans(self) -> Iterator[BatchSpan]:
        spans = self._walk.spans()
        while self.stopped is None:
            try:
                span = next(spans, None)
            except CorruptBatchError as error:
                self.stopped = error
                return
            if span is None:
                break
            valid = np.zeros(len(span.rows), dtype=np.bool_)
            shift = span.start - span.position
            check_batches(span.buffer.ctypes.data, shift, span.rows, valid, np.zeros(len(valid), dtype=np.int64))
            good = len(valid) if valid.all() else int(np.argmin(valid))
            if good < len(valid):
                position = int(span.rows["position"][good])
                self.stopped = batch_error(BAD_CRC, self._path, position, span.buffer, position + shift)
            if good:
                yield replace(span, rows=span.rows[:good])
        if self.stopped is None and self._walk.end_position < self._size_bytes:
            self.stopped = CorruptBatchError(
                "the file ends inside of a batch", path=str(self._path), position=self._walk.end_position
            )

    def _check_order(self, span: BatchSpan, expected: int) -> None:
        """Each batch begins where the one before it ends; the first may begin below what is expected."""
        firsts, behind = span.rows["base_offset"], span.rows["last_offset"] + 1
        expecteds = np.concatenate((np.array([expected], dtype=np.int64), behind[:-1]))
        wrong = firsts != expecteds
        wrong[0] = firsts[0] > expected
        if wrong.any():
            at = int(np.argmax(wrong))
            raise _missing(int(expecteds[at]), self._path)

    def _apply_records(self, span: BatchSpan, state: _State, first_offset: int) -> None:
        is_control = span.rows["attributes"] & CONTROL_BIT != 0
        bounds = np.array([first_offset, INT64_MAX, INT64_MIN, INT64_MAX], dtype=np.int64)
        gathered = RecordColumns(WANT_VALUE)
        done = 0
        while done < len(span.rows):
            try:
                done = gathered.add(span, done, is_control, bounds)
            except BadBatchError as bad:
                bad.error.path, bad.error.offset = str(self._path), int(span.rows["base_offset"][bad.index])
                raise bad.error from bad
            table = gathered.take()
            for offset, value in zip(table.offsets().tolist(), table.values().to_pylist(), strict=True):
                try:
                    record = decode_metadata_record(value)
                    if record is not None:
                        state.apply(record)
                except SedimentError as error:
                    error.path, error.offset = str(self._path), offset
                    raise


class _State:
    """Topics and configs as the records so far say; changes of an open transaction wait."""

    def __init__(self) -> None:
        self._topic_ids: dict[str, str] = {}
        self._topic_names: dict[str, str] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._waiting: list[MetadataRecord] | None = None

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record, or keep it for the end of its transaction.

        Raises:
            CorruptBatchError: it contradicts those before it.
        """
        if not isinstance(record, TransactionStep):
            if self._waiting is None:
                self._change(record)
            else:
                self._waiting.append(record)
            return
        if (record is TransactionStep.BEGIN) != (self._waiting is None):
            raise CorruptBatchError(f"a metadata transaction's {record} has no place here")
        waited = self._waiting or []
        self._waiting = [] if record is TransactionStep.BEGIN else None
        if record is TransactionStep.END:
            for change in waited:
                self._change(change)

    def metadata(self, end_offset: int) -> ClusterMetadata:
        """The state; what waits for the end of a transaction is not part of it."""
        return ClusterMetadata(
            topic_ids=self._topic_ids,
            topic_configs=self._of(ResourceType.TOPIC),
            broker_configs=self._of(ResourceType.BROKER),
            end_offset=end_offset,
        )

    def _of(self, kind: ResourceType) -> dict[str, Mapping[str, str]]:
        return {name: configs for (of_kind, name), configs in self._configs.items() if of_kind == kind and configs}

    def _change(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self._topic_ids[name] = topic_id
                self._topic_names[topic_id] = name
            case RemoveTopicRecord(topic_id):
                if topic_id not in self._topic_names:
                    raise CorruptBatchError(f"topic id {topic_id} is deleted and was never created")
                deleted = self._topic_names.pop(topic_id)
                self._topic_ids.pop(deleted, None)
                self._configs.pop((ResourceType.TOPIC, deleted), None)
            case ConfigRecord(kind, resource, key, None):
                self._configs.get((kind, resource), {}).pop(key, None)
            case ConfigRecord(kind, resource, key, str(value)):
                self._configs.setdefault((kind, resource), {})[key] = value
