"""ClusterMetadata: topics, configs, features and users in the KRaft metadata log of a log directory.

    latest <end offset>-<epoch>.checkpoint ──> the state up to its end offset (exclusive); if it is unreadable, an
                                               older one, or none, if the log has all records since then
    batches from that offset on ─────────────> the changes since
    bootstrap.checkpoint ────────────────────> the state of a clone or an adopted directory before its first start

Every complete batch with a valid CRC is applied, up to the log's end.  No file contains the offset up to which the
quorum had committed when the node stopped.  With one controller, every batch on disk is committed.  With several
controllers, the last batches may be uncommitted.  Clients got no acknowledgement for such changes.  A metadata
transaction that was aborted, or is still open at the end, is not applied (KIP-868).

Invariants: nothing is written, and no data is skipped silently.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.status import BAD_CRC
from sediment.segment_io.errors import CorruptBatchError, ProtocolError, SedimentError, SourceChangedError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.control_records import CONTROL_KEY_STRUCT
from sediment.segment_io.format.layout import (
    CONTROL_BIT,
    CONTROL_KRAFT_VERSION,
    CONTROL_KRAFT_VOTERS,
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    INT64_MAX,
    INT64_MIN,
)
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    LEADER_EPOCH_FILE,
    METADATA_PARTITION,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_records import ResourceType, decode_metadata_record
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.clean_shutdown_file import is_without_broker
from sediment.segment_io.partition.formatted_directory import VOTERS_SNAPSHOT, has_metadata_log
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import Bounds, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.segment.columns import WANT_KEY, WANT_VALUE, BadBatchError, RecordColumns, check_batches
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, batch_error
from sediment.segment_io.segment.recovery_scan import find_batches_after

ALL_BROKERS = ""
SERVER_TRANSACTION = "sediment serve"
"""Name of the metadata transactions in which a server adds partitions or removes topics."""

QuotaEntity = tuple[tuple[str, str | None], ...]

_SNAPSHOT_NAME = re.compile(r"([0-9]{20,})-([0-9]{10,})\.checkpoint")
_TRANSACTION_STEPS = frozenset({"BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"})
_APPLIED = _TRANSACTION_STEPS | {
    "TopicRecord",
    "RemoveTopicRecord",
    "PartitionRecord",
    "PartitionChangeRecord",
    "ConfigRecord",
    "FeatureLevelRecord",
    "ProducerIdsRecord",
    "UserScramCredentialRecord",
    "RemoveUserScramCredentialRecord",
    "AccessControlEntryRecord",
    "RemoveAccessControlEntryRecord",
    "ClientQuotaRecord",
    "NoOpRecord",
    "ZkMigrationStateRecord",
}
_MIGRATING = frozenset({1, 2})  # MIGRATION and PRE_MIGRATION of Kafka's ZkMigrationState
KRAFT_VERSION = "kraft.version"
"""The feature whose level is in a control record."""

_QUORUM_TYPES = frozenset({CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS})
_ATTEMPTS = 5
_NO_LEADER_CHANGE = -2  # Kafka's LeaderConstants.NO_LEADER_CHANGE
_ADVICE = (
    "restore the directory from a backup, or work on a copy without __cluster_metadata-0 and give the topics' settings "
    "with --config and --set"
)
_TRUNCATED_ADVICE = (
    "run nothing that writes to this directory, not even a broker: a start truncates the log; clone the directory, or "
    "restore it from a backup"
)
_BOOTSTRAP_ADVICE = (
    f"restore the file from a backup, or work on a copy without {BOOTSTRAP_FILE} and give the topics' settings with "
    "--config and --set"
)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Ids of topics (22 characters) by name, and configs; `end_offset` is the offset after the last applied record.

    A topic without topic-level configs has no entry in `topic_configs`.  The same is true for groups and for
    subscriptions to client metrics.  Keys of `broker_configs` are node ids as text; the configs of all brokers are
    under ALL_BROKERS.  `scram_credentials` has the credential records by mechanism number and user.  `next_producer_id`
    is above every producer id that the controller gave to a broker.  `quotas` has the quota records by (entity, key);
    an entity consists of (type, name) pairs.  `quorum_records` has the values of the last KRaftVersionRecord and the
    last VotersRecord by control type, as the log contains them.  For each partition, `directory_ids` has the ids of its
    replicas' log directories, if the records state them.  `new_partitions` are the partitions that `sediment serve`
    added since a broker last ran; after a crash, their folders may be missing.  `removed_topic_ids` are the ids of
    topics that `sediment serve` removed since a broker last ran, except topics that were added again.
    `former_topic_ids` are the ids of deleted topics by name, as far as the records since the last snapshot show them.
    `is_in_migration` is True if the cluster was being migrated from ZooKeeper when the records were written.
    `unreadable_snapshot` is the name of the latest snapshot if an older one, or the log alone, had to replace it.
    """

    topic_ids: Mapping[str, str]
    topic_configs: Mapping[str, Mapping[str, str]]
    broker_configs: Mapping[str, Mapping[str, str]]
    end_offset: int
    replicas: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    scram_credentials: Mapping[tuple[int, str], Any] = field(default_factory=dict, repr=False)
    next_producer_id: int = 0
    acls: Mapping[uuid.UUID, Any] = field(default_factory=dict)
    quotas: Mapping[tuple[QuotaEntity, str], Any] = field(default_factory=dict)
    quorum_records: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    has_open_transaction: bool = False
    is_bootstrap: bool = False
    leader_epochs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    directory_ids: Mapping[str, Mapping[int, tuple[uuid.UUID, ...]]] = field(default_factory=dict)
    new_partitions: frozenset[TopicPartition] = frozenset()
    removed_topic_ids: frozenset[str] = frozenset()
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    former_topic_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_in_migration: bool = False
    unreadable_snapshot: str | None = None

    @property
    def partitions(self) -> Mapping[str, frozenset[int]]:
        return {topic: frozenset(found) for topic, found in self.replicas.items()}

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version: 1 with a dynamic quorum, 0 with a static one or if unreadable."""
        try:
            value = self.quorum_records[CONTROL_KRAFT_VERSION]
            return int(m.KRaftVersionRecord.decode(value, 0).k_raft_version)
        except (KeyError, ProtocolError):
            return 0

    def configs_of_broker(self, node_id: int | None) -> dict[str, str]:
        own = {} if node_id is None else self.broker_configs.get(str(node_id), {})
        return {**self.broker_configs.get(ALL_BROKERS, {}), **own}

    def with_records(self, values: Iterable[bytes]) -> ClusterMetadata:
        """Return the state after further records, which `encode_metadata_record` has encoded.

        An open metadata transaction counts as aborted.
        """
        image = MetadataImage.of(self)
        end_offset = self.end_offset
        for value in values:
            record = decode_metadata_record(value, _APPLIED)
            if record is not None:
                image.apply(record, end_offset)
            end_offset += 1
        return image.metadata(end_offset)


def read_cluster_metadata(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    """Return the metadata in `log_dir`; None if the directory has no metadata log, or if the log is empty.

    Source: KIP-595, KIP-630, KIP-868; Kafka 4.2.0.
    """
    directory = log_dir / str(METADATA_PARTITION)
    if not has_metadata_log(fs, log_dir):
        # At the first start of a broker, `bootstrap.checkpoint` becomes stale, because topics and configs then change
        # in the metadata log.  So the file is used only if the marker of a clean stop proves that no broker has started
        # on the directory.
        return read_bootstrap_checkpoint(log_dir, fs) if is_without_broker(fs, log_dir) else None
    for _ in range(_ATTEMPTS):
        snapshots = finished_snapshots(entry.name for entry in fs.scan(directory))
        try:
            found = _read_best(directory, snapshots, fs)
        except FileNotFoundError:
            continue
        except SedimentError as error:
            if finished_snapshots(entry.name for entry in fs.scan(directory))[:1] != snapshots[:1]:
                continue
            error.partition = str(METADATA_PARTITION)
            error.path = error.path or str(directory)
            error.advice = _ADVICE
            raise
        return found
    raise SourceChangedError(
        "the metadata log's files are replaced faster than they can be read",
        partition=str(METADATA_PARTITION),
        path=str(directory),
        advice="run again",
    )


def check_loadable(log_dir: Path, end_offset: int, fs: Fs) -> None:
    """Check that loading the metadata log keeps every batch below `end_offset`, which `read_cluster_metadata` returned.

    The metadata may be readable even if a part of the log is not, because batches below the latest snapshot are not
    read.
    """
    directory = log_dir / str(METADATA_PARTITION)
    source = Source(METADATA_PARTITION, directory)
    try:
        found = 0
        # Loading reads every batch, and truncates the log at the first bad batch.
        for number, segment in enumerate(live_segments(source, fs)):
            path = segment.path(directory, SegmentFileKind.LOG)
            found = found if number else segment.base_offset
            if segment.base_offset != found:
                raise _missing(found, path)
            scan = _VerifiedScan(path, 0, None)
            found = max(found, scan.check(found))
            if scan.stopped is not None and found < end_offset:
                raise scan.stopped
        if found != end_offset:
            raise CorruptBatchError(
                f"the metadata ends at offset {end_offset}, but the metadata log ends at offset {found}",
                path=str(directory),
            )
    except CorruptBatchError as error:
        error.partition = str(METADATA_PARTITION)
        error.advice = _TRUNCATED_ADVICE
        raise


def finished_snapshots(names: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return (end offset, epoch, name) of the finished snapshots among the files of a metadata log, latest first."""
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := _SNAPSHOT_NAME.fullmatch(name))]
    return sorted(found, reverse=True)


def _read_best(directory: Path, snapshots: Sequence[tuple[int, int, str]], fs: Fs) -> ClusterMetadata | None:
    if not snapshots:
        return _read(directory, None, fs)
    end_offset, _, name = snapshots[0]
    try:
        return _read(directory, snapshots[0], fs)
    except CorruptBatchError as error:
        if error.path != str(directory / name):
            raise
        # A power loss can leave the latest snapshot with 0 bytes.  Nothing is lost then if the log still has the
        # records that the snapshot summarizes.
        for older in (*snapshots[1:], None):
            with suppress(CorruptBatchError):
                found = _read(directory, older, fs)
                if found is not None and found.end_offset >= end_offset:
                    return replace(found, unreadable_snapshot=name)
        raise


def _read(directory: Path, snapshot: tuple[int, int, str] | None, fs: Fs) -> ClusterMetadata | None:
    reached = _offsets_reached(directory, fs)  # read before the log, because a running node appends to the log
    state = MetadataImage()
    end_offset = 0
    if snapshot is not None:
        end_offset, _, name = snapshot
        _read_snapshot(directory / name, state)
    source = Source(METADATA_PARTITION, directory)
    segments = live_segments(source, fs)
    slices = plan_slices(source, Bounds(first_offset=end_offset), fs)
    for part in slices:
        scan = _VerifiedScan(part.path, part.start_position, part.end_position)
        scan.apply(state, end_offset, in_order=True)
        end_offset = max(end_offset, scan.next_offset)
        if scan.stopped is not None:
            # Only a torn batch is accepted, because a crash can leave one.  The log then ends after the last complete
            # batch.  A node that starts also ends it there.
            following = find_batches_after(part.path, scan.stopped.position or 0, part.end_position, end_offset)
            if part is not slices[-1] or following.good_batches:
                raise scan.stopped
    if segments and segments[-1].base_offset > end_offset:
        raise _missing(end_offset, segments[-1].path(directory, SegmentFileKind.LOG))
    farthest, witness = max(reached, default=(0, ""))
    if farthest > end_offset:
        raise CorruptBatchError(
            f"the metadata log ends at offset {end_offset}, although {witness} shows that it once reached offset "
            f"{farthest}",
            path=str(directory),
        )
    return state.metadata(end_offset) if end_offset else None


def _offsets_reached(directory: Path, fs: Fs) -> list[tuple[int, str]]:
    """Return earlier log end offsets, each with the name of the file that proves it."""
    names = [(name, parse_segment_file(name)) for name in (entry.name for entry in fs.scan(directory))]
    # A clean stop writes a producer snapshot whose name contains the log end.
    ends = [(file, name) for name, file in names if file and file.kind is SegmentFileKind.SNAPSHOT and not file.state]
    found = [(file.base_offset, name) for file, name in ends]
    # A new leader epoch begins at the log end, and is written to the leader epoch file.
    epochs = read_leader_epochs(fs, directory / LEADER_EPOCH_FILE) or ()
    # Both files are written after all records below these offsets.  So a log that ends below such an offset is a
    # truncated copy.
    return found + [(entry.start_offset, LEADER_EPOCH_FILE) for entry in epochs]


def read_bootstrap_checkpoint(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    """Return the state in `bootstrap.checkpoint`, even if it is stale; None if the file is missing or has no topics."""
    metadata = read_bootstrap_records(log_dir, fs)
    # If a node was formatted but never started, the file has feature levels but no topics.  Such a file does not show
    # which topics a lost metadata log contained.
    return metadata if metadata is not None and metadata.topic_ids else None


def read_bootstrap_records(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    """Return the state in `bootstrap.checkpoint`, even without topics; None if the file is missing.

    The state includes the voters that a format has written.
    """
    path = log_dir / BOOTSTRAP_FILE
    if not fs.exists(path):
        return None
    state = MetadataImage(is_bootstrap=True)
    voters = log_dir / str(METADATA_PARTITION) / VOTERS_SNAPSHOT
    try:
        if fs.exists(voters):
            _read_snapshot(voters, state)
        end_offset = _read_snapshot(path, state)
    except SedimentError as error:
        error.advice = _BOOTSTRAP_ADVICE
        raise
    return state.metadata(end_offset)


def _missing(offset: int, path: Path) -> CorruptBatchError:
    return CorruptBatchError(f"offset {offset} of the metadata log is missing", path=str(path))


def _read_snapshot(path: Path, state: MetadataImage) -> int:
    scan = _VerifiedScan(path, 0, None)
    scan.apply(state, INT64_MIN, in_order=False)
    if scan.stopped is not None:
        raise scan.stopped
    if scan.last_control_type != CONTROL_SNAPSHOT_FOOTER:
        raise CorruptBatchError("the snapshot has no footer", path=str(path))
    return scan.next_offset


class _VerifiedScan:
    """The batches of one file up to the first torn or corrupt batch; `stopped` is the error of that batch.

    `next_offset` is the offset after the last good batch; `last_control_type` is the control type of that batch.
    """

    def __init__(self, path: Path, start_position: int, end_position: int | None) -> None:
        self.stopped: CorruptBatchError | None = None
        self.next_offset = INT64_MIN
        self.last_control_type = -1
        self._path = path
        self._size_bytes = path.stat().st_size if end_position is None else end_position
        self._scan = HeaderScan(path, start_position, size_bytes=self._size_bytes)

    def apply(self, state: MetadataImage, first_offset: int, *, in_order: bool) -> None:
        for span in self._good_spans():
            if in_order:
                self._check_order(span, max(first_offset, self.next_offset))
            self.next_offset = int(span.rows["last_offset"][-1]) + 1
            self.last_control_type = int(span.rows["control_type"][-1])
            self._apply_records(span, state, first_offset)

    def check(self, first_offset: int) -> int:
        self.next_offset = first_offset
        for span in self._good_spans():
            self._check_order(span, self.next_offset)
            self.next_offset = int(span.rows["last_offset"][-1]) + 1
        return self.next_offset

    def _good_spans(self) -> Iterator[BatchSpan]:
        spans = self._scan.spans()
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
        if self.stopped is None and self._scan.end_position < self._size_bytes:
            self.stopped = CorruptBatchError(
                "the file ends inside a batch", path=str(self._path), position=self._scan.end_position
            )

    def _check_order(self, span: BatchSpan, expected: int) -> None:
        firsts, nexts = span.rows["base_offset"], span.rows["last_offset"] + 1
        expecteds = np.concatenate((np.array([expected], dtype=np.int64), nexts[:-1]))
        wrong = firsts != expecteds
        wrong[0] = firsts[0] > expected
        if wrong.any():
            at = int(np.argmax(wrong))
            raise _missing(int(expecteds[at]), self._path)

    def _apply_records(self, span: BatchSpan, state: MetadataImage, first_offset: int) -> None:
        is_control = span.rows["attributes"] & CONTROL_BIT != 0
        for offset, _, value in self._records(span, first_offset, left_out=is_control):
            try:
                record = decode_metadata_record(value, _APPLIED)
                if record is not None:
                    state.apply(record, offset)
            except SedimentError as error:
                error.path, error.offset = str(self._path), offset
                raise
        if is_control.any():
            for offset, key, value in self._records(span, first_offset, left_out=~is_control):
                state.apply_control(key, value, offset)

    def _records(
        self, span: BatchSpan, first_offset: int, *, left_out: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        bounds = np.array([first_offset, INT64_MAX, INT64_MIN, INT64_MAX], dtype=np.int64)
        gathered = RecordColumns(WANT_KEY | WANT_VALUE)
        done = 0
        while done < len(span.rows):
            try:
                done = gathered.add(span, done, left_out, bounds)
            except BadBatchError as bad:
                bad.error.path, bad.error.offset = str(self._path), int(span.rows["base_offset"][bad.index])
                raise bad.error from bad
            table = gathered.take()
            columns = table.offsets().tolist(), table.keys().to_pylist(), table.values().to_pylist()
            yield from zip(*columns, strict=True)


class MetadataImage:
    """The topics and configs after the applied records; the changes of a transaction are applied at its end.

    In a metadata log, a server adds partitions and removes topics in a SERVER_TRANSACTION.  In a bootstrap checkpoint,
    only a server removes topics, and a server adds its partitions after a NoOpRecord.
    """

    def __init__(self, *, is_bootstrap: bool = False) -> None:
        self._topic_ids: dict[str, str] = {}
        self._topic_names: dict[str, str] = {}
        self._former_topic_ids: dict[str, frozenset[str]] = {}
        self._removed: dict[str, int] = {}  # offsets of the records that removed topics, by topic id
        self._replicas: dict[str, dict[int, tuple[int, ...]]] = {}
        self._leader_epochs: dict[str, dict[int, int]] = {}
        self._directory_ids: dict[str, dict[int, tuple[uuid.UUID, ...]]] = {}
        self._additions: dict[tuple[str, int], int] = {}  # offsets of the records of partitions that a server added
        self._is_of_server = False
        self._elected_at = INT64_MIN
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._features: dict[str, int] = {}
        self._scram_credentials: dict[tuple[int, str], Any] = {}
        self._next_producer_id = 0
        self._acls: dict[uuid.UUID, Any] = {}
        self._quotas: dict[tuple[QuotaEntity, str], Any] = {}
        self._waiting: list[tuple[Any, int]] | None = None
        self._quorum_records: dict[int, bytes] = {}
        self._is_bootstrap = is_bootstrap
        self._is_in_migration = False

    @classmethod
    def of(cls, metadata: ClusterMetadata) -> MetadataImage:
        """Return an image that begins with the state `metadata`; later changes do not affect `metadata`."""
        image = cls(is_bootstrap=metadata.is_bootstrap)
        ids = metadata.topic_ids
        image._topic_ids = dict(ids)
        image._topic_names = {topic_id: name for name, topic_id in ids.items()}
        image._former_topic_ids = dict(metadata.former_topic_ids)
        image._removed = dict.fromkeys(metadata.removed_topic_ids, metadata.end_offset)
        image._replicas = {ids[name]: dict(found) for name, found in metadata.replicas.items()}
        image._leader_epochs = {ids[name]: dict(found) for name, found in metadata.leader_epochs.items()}
        image._directory_ids = {ids[name]: dict(found) for name, found in metadata.directory_ids.items()}
        for kind, of_kind in (
            (ResourceType.TOPIC, metadata.topic_configs),
            (ResourceType.BROKER, metadata.broker_configs),
            (ResourceType.GROUP, metadata.group_configs),
            (ResourceType.CLIENT_METRICS, metadata.client_metrics_configs),
        ):
            image._configs |= {(kind, name): dict(found) for name, found in of_kind.items()}
        image._features = dict(metadata.features)
        image._scram_credentials = dict(metadata.scram_credentials)
        image._next_producer_id = metadata.next_producer_id
        image._acls = dict(metadata.acls)
        image._quotas = dict(metadata.quotas)
        image._quorum_records = dict(metadata.quorum_records)
        image._is_in_migration = metadata.is_in_migration
        return image

    def apply(self, record: Any, offset: int) -> None:
        name = type(record).__name__
        if name not in _TRANSACTION_STEPS:
            if self._waiting is None:
                self._change(record, offset)
            else:
                self._waiting.append((record, offset))
            return
        begins = isinstance(record, m.BeginTransactionRecord)
        if begins:
            self._is_of_server = record.name == SERVER_TRANSACTION
        if begins != (self._waiting is None):
            raise CorruptBatchError(f"a metadata transaction's {name} is out of order")
        waited = self._waiting or []
        self._waiting = [] if begins else None
        if isinstance(record, m.EndTransactionRecord):
            for change in waited:
                self._change(*change)
        if not begins:
            self._is_of_server = False

    def apply_control(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        if key is not None and value is not None and len(key) >= CONTROL_KEY_STRUCT.size:
            _, kind = CONTROL_KEY_STRUCT.unpack_from(key)
            if kind in _QUORUM_TYPES:
                self._quorum_records[kind] = value
            elif kind == CONTROL_LEADER_CHANGE:
                self._elected_at = max(self._elected_at, offset)

    def metadata(self, end_offset: int) -> ClusterMetadata:
        return ClusterMetadata(
            topic_ids=self._topic_ids,
            topic_configs=self._of(ResourceType.TOPIC),
            broker_configs=self._of(ResourceType.BROKER),
            end_offset=end_offset,
            replicas={name: self._replicas.get(topic_id, {}) for name, topic_id in self._topic_ids.items()},
            features=self._features,
            scram_credentials=self._scram_credentials,
            next_producer_id=self._next_producer_id,
            acls=self._acls,
            quotas=self._quotas,
            quorum_records=self._quorum_records,
            has_open_transaction=self._waiting is not None,
            is_bootstrap=self._is_bootstrap,
            leader_epochs={name: self._leader_epochs.get(each, {}) for name, each in self._topic_ids.items()},
            directory_ids={name: self._directory_ids.get(each, {}) for name, each in self._topic_ids.items()},
            # Every start of a broker writes an election to the log.  So if records follow the last election, no broker
            # has run since these records were written.
            new_partitions=frozenset(
                TopicPartition(self._topic_names[topic_id], number)
                for (topic_id, number), offset in self._additions.items()
                if offset > self._elected_at and topic_id in self._topic_names
            ),
            removed_topic_ids=frozenset(
                topic_id for topic_id, offset in self._removed.items() if offset > self._elected_at
            ),
            group_configs=self._of(ResourceType.GROUP),
            client_metrics_configs=self._of(ResourceType.CLIENT_METRICS),
            former_topic_ids=self._former_topic_ids,
            is_in_migration=self._is_in_migration,
        )

    def _of(self, kind: ResourceType) -> dict[str, Mapping[str, str]]:
        return {name: configs for (of_kind, name), configs in self._configs.items() if of_kind == kind and configs}

    def _change(self, record: Any, offset: int) -> None:
        match record:
            case m.TopicRecord(name=name, topic_id=raw_id):
                topic_id = format_uuid(raw_id.bytes)
                self._topic_ids[name] = topic_id
                self._topic_names[topic_id] = name
                if name in self._former_topic_ids:
                    self._former_topic_ids[name] -= {topic_id}
                self._removed.pop(topic_id, None)  # `sediment adopt` adds a topic again under its id
            case m.RemoveTopicRecord(topic_id=raw_id):
                topic_id = format_uuid(raw_id.bytes)
                if topic_id not in self._topic_names:
                    raise CorruptBatchError(f"topic id {topic_id} is deleted but was never created")
                deleted = self._topic_names.pop(topic_id)
                self._former_topic_ids[deleted] = self._former_topic_ids.get(deleted, frozenset()) | {topic_id}
                if self._is_of_server or self._is_bootstrap:
                    self._removed[topic_id] = offset
                for partitions in (self._replicas, self._leader_epochs, self._directory_ids):
                    partitions.pop(topic_id, None)
                self._topic_ids.pop(deleted, None)
                self._configs.pop((ResourceType.TOPIC, deleted), None)
            case m.ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=None):
                self._configs.get((kind, resource), {}).pop(key, None)
            case m.ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=str(value)):
                self._configs.setdefault((kind, resource), {})[key] = value
            case m.PartitionRecord(topic_id=raw_id, partition_id=number, replicas=nodes, leader_epoch=epoch):
                topic_id = format_uuid(raw_id.bytes)
                self._replicas.setdefault(topic_id, {})[number] = tuple(nodes)
                self._leader_epochs.setdefault(topic_id, {})[number] = epoch
                self._directory_ids.setdefault(topic_id, {})[number] = tuple(record.directories)
                if self._is_of_server:
                    self._additions[topic_id, number] = offset
            case m.PartitionChangeRecord():
                self._change_partition(record)
            case m.NoOpRecord():
                if self._is_bootstrap:
                    self._is_of_server = True
            case m.ZkMigrationStateRecord(zk_migration_state=state):
                self._is_in_migration = state in _MIGRATING
            case m.FeatureLevelRecord(name=name, feature_level=level):
                self._features[name] = level
                if not level:
                    del self._features[name]
            case m.UserScramCredentialRecord(name=name, mechanism=mechanism):
                self._scram_credentials[mechanism, name] = record
            case m.RemoveUserScramCredentialRecord(name=name, mechanism=mechanism):
                self._scram_credentials.pop((mechanism, name), None)
            case m.ProducerIdsRecord(next_producer_id=next_producer_id):
                self._next_producer_id = next_producer_id
            case m.AccessControlEntryRecord(id=acl_id):
                self._acls[acl_id] = record
            case m.RemoveAccessControlEntryRecord(id=acl_id):
                self._acls.pop(acl_id, None)
            case m.ClientQuotaRecord(entity=parts, key=key, remove=is_removed):
                entity = tuple(sorted((part.entity_type, part.entity_name) for part in parts))
                self._quotas[entity, key] = record
                if is_removed:
                    del self._quotas[entity, key]

    def _change_partition(self, record: Any) -> None:
        """Source: Kafka's PartitionRegistration.merge."""
        topic_id, number = format_uuid(record.topic_id.bytes), record.partition_id
        if record.replicas is not None:
            self._replicas.setdefault(topic_id, {})[number] = tuple(record.replicas)
        if record.directories is not None:
            self._directory_ids.setdefault(topic_id, {})[number] = tuple(record.directories)
        if record.leader != _NO_LEADER_CHANGE:
            epochs = self._leader_epochs.setdefault(topic_id, {})
            epochs[number] = epochs.get(number, 0) + 1
