"""Public functions: one for each command, with the options of the command as keywords.

Names, types, defaults and effects of the keywords are stable.  Every function returns a result and prints nothing;
warnings and progress go to the loggers under `sediment`.  Errors are `SedimentError` and its subclasses.  A failed
partition does not raise an error: look at `failed`, or call `raise_for_status()`.
"""

# Each function reads its keywords from locals(), so the signature is the only list of the keywords.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from sediment.jobs.command_line.calls import call, call_plainly, call_until_stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sediment.jobs.adopt import AdoptionRunReport
    from sediment.jobs.cloning.check import CopyCheckReport
    from sediment.jobs.cloning.report import CloneRunReport
    from sediment.jobs.doctor import DoctorReport
    from sediment.jobs.dump import TableDump
    from sediment.jobs.erasing.check_evidence import CheckReport
    from sediment.jobs.erasing.report import EraseRunReport
    from sediment.jobs.expire import ExpiryRunReport
    from sediment.jobs.history import HistoryReport
    from sediment.jobs.originals import OriginalsRunReport
    from sediment.jobs.plan import PlanReport
    from sediment.jobs.recover import RecoveryRunReport
    from sediment.jobs.reencode import ReencodeRunReport
    from sediment.jobs.reporting.run_report import CompactionRunReport
    from sediment.jobs.restore import RestoreRunReport
    from sediment.jobs.snapshot import SnapshotReport
    from sediment.jobs.vacuum import VacuumRunReport
    from sediment.jobs.verifying.report import VerificationReport

Path: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = Path | Sequence[Path]
Texts: TypeAlias = str | Sequence[str]
Settings: TypeAlias = Mapping[str, object] | Sequence[str]


def plan(
    log_dirs: Paths = (),
    *,
    exact: bool = False,
    force: bool = False,
    from_start: bool = False,
    drop_keyless: bool = False,
    key_equality: Literal["hash", "exact"] = "hash",
    codec: str | None = None,
    level: int | None = None,
    batch_bytes: int | None = None,
    originals: Path | None = None,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> PlanReport:
    """Explain what compaction and retention would do now with log directories; write nothing.

    Args:
        log_dirs: entries of a broker's `log.dirs`; not needed if `config` names them.
        exact: read every key, so the figures are exactly what `compact` would produce.
        force: plan for `compact(force=True)`, which ignores the dirty ratio and drops expired tombstones.
        from_start: plan for `compact(from_start=True)`, which ignores the cleaner checkpoint.
        drop_keyless: plan for `compact(drop_keyless=True)`, which also cleans partitions that would mostly lose records
            without a key.
        key_equality: compare keys by their 128-bit hashes, or by their bytes.
        codec: also estimate the size after `reencode` with this codec: none, gzip, snappy, lz4 or zstd.
        level: compression level, as in Kafka's `compression.<codec>.level`; default: Kafka's default.
        batch_bytes: also estimate the size after `reencode` with merged batches of up to this size.
        originals: also report how much disk space is used by the originals in this directory of `keep_originals`.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong.
    """
    keywords = locals()
    from sediment.jobs import plan as job

    return call(job.command, job.perform, keywords)


def compact(
    log_dirs: Paths = (),
    *,
    force: bool = False,
    dry_run: bool = False,
    from_start: bool = False,
    strategy: Literal["auto", "whole", "split"] = "auto",
    key_equality: Literal["hash", "exact"] = "hash",
    codec: str | None = None,
    level: int | None = None,
    batch_bytes: int | None = None,
    on_corruption: Literal["fail", "keep"] = "fail",
    drop_keyless: bool = False,
    retry_quarantined: bool = False,
    roll_active: bool = False,
    keep_originals: Path | None = None,
    keep_before: Path | None = None,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    hand_off: Path | None = None,
    output: Path | None = None,
    scratch: Path | None = None,
    allow_network_fs: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> CompactionRunReport:
    """Compact the partitions of log directories whose `cleanup.policy` includes `compact`.

    On Ctrl-C, the call finishes the current group of segments, commits it and releases the locks.

    Args:
        log_dirs: as for `plan`; URIs need `output`.
        force: ignore the dirty ratio; a log without dirty records is cleaned again only if tombstones have expired.
        dry_run: clean in memory, write nothing, and report the result.
        from_start: ignore the cleaner checkpoint and clean from the log start.
        strategy: clean a partition with one task (`whole`) or with many (`split`); `auto` chooses for each partition.
        key_equality: compare keys by their 128-bit hashes, or by their bytes.
        codec: none, gzip, snappy, lz4 or zstd for the batches of cleaned segments; default: each batch keeps its codec.
        level: compression level, as in Kafka's `compression.<codec>.level`; default: Kafka's default.
        batch_bytes: merge neighbouring batches of cleaned segments up to this uncompressed size; default: no merging.
        on_corruption: `fail`: quarantine a partition with a corrupt batch; `keep`: keep the batch and clean the others.
        drop_keyless: also clean a partition if more than half of the records that it would lose have no key.
        retry_quarantined: try quarantined partitions again.
        roll_active: also roll and clean the active segment; for a copy that no broker uses.
        keep_originals: first make hard links in this directory to the files that the run replaces.
        keep_before: before a partition changes, make hard links in this new directory to all its files; pass the
            directory to `verify` as `before`.
        max_bytes: clean at most this many bytes of log.
        max_seconds: after this time, start no further partition, and abandon unfinished ones.
        hand_off: leave the cleaned segments in this directory for the running engine that owns the log directory.
        output: write a complete log directory here, a path or a URI, and leave the source unchanged.
        scratch: with `output` and a URI source, fetch a partition into this directory if its files must change before
            cleaning.
        allow_network_fs: allow network filesystems.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import compact as job

    return call_until_stopped(job.command, job.perform, keywords)


def erase(
    log_dirs: Paths = (),
    *,
    keys_file: Path | None = None,
    key_format: Literal["text", "hex", "base64", "json-path"] = "text",
    where: str | None = None,
    verdicts: Path | None = None,
    action: Literal["drop", "tombstone", "replace"] | None = None,
    replacement: Path | None = None,
    all_versions: bool = False,
    tombstones_out: Path | None = None,
    suppress_out: Path | None = None,
    evidence: Path | None = None,
    secret_file: Path | None = None,
    signing_key: Path | None = None,
    check: Path | None = None,
    public_key: Path | None = None,
    dry_run: bool = False,
    keep_originals: Path | None = None,
    output: Path | None = None,
    allow_network_fs: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> EraseRunReport | CheckReport:
    """Erase records from log directories of stopped brokers, or check the evidence of an erasure.

    The call never asks for confirmation.  On Ctrl-C, it finishes the current group of segments, commits it and releases
    the locks.

    Args:
        log_dirs: as for `plan`; URIs need `output` and `keys_file`.
        keys_file: erase the records with the keys in this file, one key per line.
        key_format: format of the keys in `keys_file`.
        where: erase the records for which this Spark SQL condition on table `records` is true; `@FILE` reads it from a
            file.
        verdicts: erase the records listed in this Parquet, Delta or CSV table; its columns are topic, partition, offset
            and, optionally, action, key and value.
        action: drop the record, make its value null (`tombstone`), or replace its value; default: `tombstone` in
            compacted topics, `drop` in others.
        replacement: file with the bytes of the new value.
        all_versions: in compacted topics, also drop older records with the same key.
        tombstones_out: write to this file the keys that got a tombstone.
        suppress_out: before erasing, add the keys of `keys_file` to this file as HMACs; `clone` and `restore` accept
            the file as `suppress`.
        evidence: after the run, scan everything again and write signed evidence to this file.
        secret_file: file with the secret for the HMACs of keys in `evidence` and `suppress_out`.
        signing_key: private Ed25519 key in PEM that signs the evidence.
        check: erase nothing; check the signature of the evidence in this file and, if `log_dirs` is given, compare
            these directories with the evidence.
        public_key: with `check`, the public key in PEM.
        dry_run: change nothing; report what would be erased.
        keep_originals: first make hard links in this directory to the files that the run replaces.
        output: write a complete log directory here, a path or a URI, and leave the source unchanged.
        allow_network_fs: allow network filesystems.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        SedimentError: the broker did not stop cleanly; nothing was changed.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import erase as job

    return call_until_stopped(job.command, job.perform, keywords)


def expire(
    log_dirs: Paths = (),
    *,
    dry_run: bool = False,
    archive: Path | None = None,
    keep_originals: Path | None = None,
    allow_network_fs: bool = False,
    lineage: Path | None = None,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> ExpiryRunReport:
    """Delete segments from log directories once they are past their retention limits.

    The call never asks for confirmation, and uses Spark only for `archive`.  On Ctrl-C, it finishes the partitions in
    progress and releases the locks.

    Args:
        log_dirs: as for `plan`.
        dry_run: delete nothing; report the segments that would be deleted.
        archive: first copy the records of the expired segments to the Delta table at this path or URI.
        keep_originals: first make hard links in this directory to the files that the run deletes.
        allow_network_fs: allow network filesystems.
        lineage: send OpenLineage events about the archive to this URL, or as this YAML file prescribes.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import expire as job

    return call_until_stopped(job.command, job.perform, keywords)


def verify(
    before: Path,
    after: Path,
    *,
    since_ms: int | None = None,
    reencoded: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> VerificationReport:
    """Check that `after` is a correct compaction of `before`, by rules that are independent of the cleaner.

    Args:
        before: a log directory or the directory of one partition.
        after: the same directory after the compaction.
        since_ms: accept several compactions, of which the first ran at this time; default: accept one compaction, which
            ran at `now_ms` if that is given.
        reencoded: accept batches whose codec or size has changed, and compare their records.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: the directories cannot be compared, or an option is wrong.
        SourceChangedError: a directory changed while it was read.
    """
    keywords = {**locals(), "log_dirs": (before, after)}
    from sediment.jobs import verify as job

    return call(job.command, job.verify, keywords)


def adopt(
    log_dirs: Paths = (),
    *,
    node_id: int | None = None,
    cluster_id: str | None = None,
    listen: str | None = None,
    server_properties: Path | None = None,
    abort_open_transactions: bool = False,
    dry_run: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> AdoptionRunReport:
    """Turn partition folders that belong to no cluster into topics of a node, in place.

    Ctrl-C ends the run after the partition in progress; the next run continues.

    Args:
        log_dirs: one log directory; if it has a metadata log, its node must be stopped and be the sole voter of its
            quorum.
        node_id: id of the node that gets the directory; default: from meta.properties, else 1.
        cluster_id: cluster id of that node; default: from meta.properties, else a new one.
        listen: address of the broker in its properties, default 127.0.0.1:9092; the controller uses the next port.
        server_properties: also write the broker's `server.properties` to this path.
        abort_open_transactions: write ABORT markers for open transactions.
        dry_run: change nothing, and report the partitions and records that would be adopted.
        partitions: must be empty: a directory is adopted as a whole.
        topics: must be empty, like `partitions`.
        allow_empty_selection: not used.
        settings: configs of topics, as `TOPIC:KEY`.
        config: the broker's `server.properties`, read for the quorum roles and for the sizes of segments and indexes.
        metadata: not used.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`; the topics get these configs.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`, for the sizes of segments.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: not used, because `adopt` needs no Spark.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: not used.

    Raises:
        UsageError: the directory belongs to a cluster with other voters, a folder clashes with a topic of the cluster,
            or an option is wrong; nothing was changed.
        DirectoryInUseError: a process uses the directory; nothing was changed.
    """
    keywords = locals()
    from sediment.jobs import adopt as job

    return call_until_stopped(job.command, job.perform, keywords)


def clone(
    log_dirs: Paths = (),
    *,
    to: Path | None = None,
    topics: Texts = (),
    renames: Mapping[str, str] | Texts = (),
    parts: str = "configs,groups,transactions",
    node_id: int = 1,
    cluster_id: str | None = None,
    hold: bool = True,
    until_offsets: Texts = (),
    until_ms: int | None = None,
    abort_open_transactions: bool = False,
    link: Literal["copy", "reflink", "hard"] = "copy",
    local_only: bool = False,
    since: str | None = None,
    strategy: Literal["auto", "whole", "split"] = "auto",
    compact: bool = False,
    codec: str | None = None,
    level: int | None = None,
    batch_bytes: int | None = None,
    suppress: Path | None = None,
    secret_file: Path | None = None,
    target_version: Literal["4.0", "4.1", "4.2"] = "4.2",
    listen: str | None = None,
    server_properties: Path | None = None,
    check: Path | None = None,
    partitions: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> CloneRunReport | CopyCheckReport:
    """Clone log directories into a directory on which a stock broker can start as a single node, or check such a clone.

    Ctrl-C ends the run; the clone is then incomplete, and the next run starts over.

    Args:
        log_dirs: directories of stopped brokers of one cluster, or copies of them, as paths or URIs; these directories
            are only read.
        to: the new directory, which must be absent, empty or an unfinished clone.
        topics: names or globs of topics to clone; default: all.
        renames: a mapping from old to new topic names, or strings `OLD=NEW`.
        parts: what else to copy, separated by commas: `groups`, `transactions`, `configs`, `acls`, `quotas`, `scram`.
        node_id: node id of the clone.
        cluster_id: cluster id of the clone; default: a new one.
        hold: change topic configs so that nothing in the clone expires or is cleaned until you restore the configs.
        until_offsets: strings `TOPIC-N:OFFSET`; in the clone, each of these partitions ends at the given offset.
        until_ms: end every log before its first record with a later timestamp.
        abort_open_transactions: write markers for open transactions.
        link: `reflink`: share blocks with the source if the filesystem supports this; `hard`: hard-link closed
            segments; default: copy all files.
        local_only: accept topics with tiered storage, and clone only their local segments.
        since: manifest of an earlier clone; unchanged closed segments are linked from that clone.
        strategy: `whole`: one task copies a partition; `split`: many tasks copy a partition; default: choose for each
            partition.
        compact: compact the partitions of the clone whose `cleanup.policy` includes `compact`, as the function
            `compact` would.
        codec: with `compact`: none, gzip, snappy, lz4 or zstd for the batches of cleaned segments; default: each batch
            keeps its codec.
        level: compression level, as in Kafka's `compression.<codec>.level`; default: Kafka's default.
        batch_bytes: with `compact`, merge neighbouring batches of cleaned segments up to this uncompressed size;
            by default, do not merge.
        suppress: leave out records whose keys are in this suppression list, which `erase` wrote to `suppress_out`.
        secret_file: with `suppress`, the file with the secret of the list's HMACs.
        target_version: limit each Kafka feature, such as `metadata.version`, to its level in this Kafka release.
        listen: address of the broker in its properties, default 127.0.0.1:9092; the controller uses the next port.
        server_properties: also write the broker's `server.properties` to this path.
        check: clone nothing; compare every file of the clone in this directory with its manifest; give no `log_dirs`.
        partitions: names or globs of partitions to clone, such as `orders-*`.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: an option is wrong, the target is not empty, or the clone to check has no manifest; nothing was
            changed.
        CorruptDataError: the manifest of the clone to check cannot be read.
        DirectoryInUseError: a process uses a source or the target.
    """
    keywords = locals()
    from sediment.jobs import clone as job

    return call_until_stopped(job.command, job.perform, keywords)


def recover(
    log_dirs: Paths = (),
    *,
    dry_run: bool = False,
    threads: int | None = None,
    keep_originals: Path | None = None,
    abort_open_transactions: bool = False,
    without_undo: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> RecoveryRunReport:
    """Load every partition of log directories as a broker does at its start, and repair it, without Spark.

    On Ctrl-C, the call finishes the partitions in progress and releases the locks.

    Args:
        log_dirs: as for `plan`.
        dry_run: change nothing; report the repairs that would be made.
        threads: load this many partitions at a time in each directory.
        keep_originals: first make hard links in this directory to all segment files, except those of logs with a suffix
            such as `-future`; at the end, remove the links to unchanged files.
        abort_open_transactions: after the repair, write an ABORT marker for each open transaction that no coordinator
            will end, without asking.
        without_undo: cut off records, as a broker does, even if their files cannot be kept first.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import recover as job

    return call_until_stopped(job.command, job.recover, keywords)


def reencode(
    log_dirs: Paths = (),
    *,
    codec: str | None = None,
    level: int | None = None,
    batch_bytes: int | None = None,
    dry_run: bool = False,
    keep_originals: Path | None = None,
    output: Path | None = None,
    allow_network_fs: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> ReencodeRunReport:
    """Change the codec or batch size of log directories; consumers see the same records as before.

    On Ctrl-C, the call finishes the partition in progress and releases the locks.

    Args:
        log_dirs: as for `plan`.
        codec: none, gzip, snappy, lz4 or zstd; default: each batch keeps its codec.
        level: compression level, as in Kafka's `compression.<codec>.level`; default: Kafka's default.
        batch_bytes: merge neighbouring batches up to this uncompressed size; default: no merging.
        dry_run: change nothing; report the size that the logs would have.
        keep_originals: first make hard links in this directory to the files that the run replaces.
        output: write a complete log directory here, a path or a URI, and leave the source unchanged.
        allow_network_fs: allow network filesystems.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a setting or an option is wrong; nothing was changed.
        UncleanDirectoryError: the broker did not stop cleanly; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import reencode as job

    return call_until_stopped(job.command, job.perform, keywords)


def restore(
    log_dirs: Paths = (),
    *,
    originals: Path,
    run: str | None = None,
    as_of: str | int | None = None,
    undo_erasure: bool = False,
    suppress: Path | None = None,
    secret_file: Path | None = None,
    dry_run: bool = False,
    allow_network_fs: bool = False,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> RestoreRunReport:
    """Restore the state that partitions had before one run, or before all runs since a time, without Spark.

    The call never asks for confirmation.  On Ctrl-C, it finishes the partition in progress and releases the locks.

    Args:
        log_dirs: as for `plan`.
        originals: the directory of `keep_originals`; the files that the restore removes are also kept there.
        run: undo this run.
        as_of: undo all runs that began at or after this time: ISO 8601 in UTC, or milliseconds since the epoch.
        undo_erasure: also put back records that a later run erased.
        suppress: refuse a partition if its originals contain a record whose key is in this suppression list.
        secret_file: with `suppress`, the file with the secret of the list's HMACs.
        dry_run: change nothing; report what would be restored.
        allow_network_fs: allow network filesystems.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory, a run or an option is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory; a restore and a vacuum are runs too.
        RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
    """
    keywords = locals()
    from sediment.jobs import restore as job

    return call_until_stopped(job.command, job.perform, keywords)


def originals(path: Path, *, now_ms: int | None = None) -> OriginalsRunReport:
    """List the runs that kept originals in a directory, and show which can be undone.

    Args:
        path: the directory of `keep_originals`.
        now_ms: the time of the report; default: now.

    Raises:
        UsageError: `path` is not a directory.
        CorruptDataError: a catalogue or the list of pins is malformed.
    """
    keywords = locals()
    from sediment.jobs import originals as job

    return call_plainly(job.command, job.perform, keywords)


def vacuum(
    path: Path,
    *,
    older_than: str | None = None,
    run: str | None = None,
    pin: str | None = None,
    unpin: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    now_ms: int | None = None,
) -> VacuumRunReport:
    """Remove the originals of old runs without asking; those runs can then no longer be undone.

    Args:
        path: the directory of `keep_originals`.
        older_than: remove the originals of runs that ended longer ago than this, such as `7d` or `36h`.
        run: with `pin`, the run whose originals are kept.
        pin: keep the originals of `run` until the pin of this name is removed.
        unpin: remove the pin of this name.
        dry_run: change nothing; report what would be removed.
        force: accept an `older_than` of less than 24 hours.
        now_ms: the current time for every rule; default: now.

    Raises:
        UsageError: the directory, a run, a pin or an option is wrong; nothing was changed.
        CorruptDataError: a catalogue or the list of pins is malformed; nothing was changed.
        DirectoryInUseError: a restore or another vacuum uses the directory.
    """
    keywords = locals()
    from sediment.jobs import vacuum as job

    return call_plainly(job.command, job.perform, keywords)


def snapshot(
    log_dirs: Paths = (),
    *,
    to: Path,
    as_of_offset: Texts = (),
    as_of_ms: int | None = None,
    from_start: bool = False,
    enable_deletion_vectors: bool = False,
    lineage: Path | None = None,
    partitions: Texts = (),
    topics: Texts = (),
    allow_empty_selection: bool = False,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
    fail_on_unknown: bool = False,
    now_ms: int | None = None,
    master: str | None = None,
    ledger: Path | None = None,
    report: Path | None = None,
    metrics: Path | None = None,
    spark: SparkSession | None = None,
) -> SnapshotReport:
    """Write the latest value of each key in log directories to a Delta table; later runs refresh it incrementally.

    Args:
        log_dirs: as for `plan`.
        to: path or URI of the table, which is created if it does not exist.
        as_of_offset: write the state after `OFFSET` or `TOPIC-N:OFFSET`, to a separate table.
        as_of_ms: write the state of the records up to this timestamp, to a separate table.
        from_start: read the selected partitions from their start again.
        enable_deletion_vectors: set `delta.enableDeletionVectors` on a table that this run creates.
        lineage: send OpenLineage events about the table to this URL, or as this YAML file prescribes.
        partitions: names or globs of partitions to select, such as `orders-*`.
        topics: names or globs of topics to select; if `partitions` is also given, a partition must match both.
        allow_empty_selection: accept a name or glob that matches nothing.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
        fail_on_unknown: count a partition as failed if it was skipped because a setting is not stated.
        now_ms: the current time for every rule; default: now.
        master: URL of a Spark master, for a session that this call starts.
        ledger: append this run to the ledger at this path or URI.
        report: write an HTML report of this run to this file.
        metrics: write Prometheus metrics of this run to this file.
        spark: a running session to use; its settings stay unchanged, and it is never stopped.  Default: the active
            SparkContext, or one that this call starts and stops.

    Raises:
        UsageError: a directory or an option is wrong, or Delta is missing; nothing was changed.
        SourceChangedError: the logs changed repeatedly while they were read.
    """
    keywords = locals()
    from sediment.jobs import snapshot as job

    return call(job.command, job.perform, keywords)


def doctor(
    log_dirs: Paths = (),
    *,
    settings: Settings = (),
    config: Paths = (),
    metadata: Path | None = None,
    topic_configs: Paths = (),
    broker_configs: Paths = (),
    broker_defaults: bool = False,
) -> DoctorReport:
    """Check this machine and log directories for problems before a run; change nothing.

    Spark is not started.

    Args:
        log_dirs: entries of a broker's `log.dirs`. If empty, the call checks the directories that `config` names;
            without `config`, it checks only the machine.
        settings: topic and broker settings under their Kafka names, as a mapping or as strings `KEY=VALUE`; a key
            `TOPIC:KEY` applies to one topic only.
        config: the broker's `server.properties`; of several brokers, the file of each.
        metadata: the log directory that contains `__cluster_metadata-0`.
        topic_configs: the output of `kafka-configs.sh --describe --entity-type topics`, for a broker of ZooKeeper.
        broker_configs: the output of `kafka-configs.sh --describe --entity-type brokers`.
        broker_defaults: use Kafka's default for every setting that is not stated.
    """
    keywords = locals()
    from sediment.jobs import doctor as job

    return call_plainly(job.command, job.perform, keywords)


def dump(
    paths: Paths,
    *,
    what: str | None = None,
    offsets: str | None = None,
    timestamps_ms: str | None = None,
    partitions: Texts = (),
    allow_empty_selection: bool = False,
    last: int | None = None,
    key: Texts = (),
    key_format: Literal["text", "hex", "base64"] = "text",
    header: Texts = (),
    columns: Texts | None = None,
    config: Path | None = None,
    replicas: Literal["best", "all"] | None = None,
    as_topic: str | None = None,
    keys: bool = False,
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    on_corruption: Literal["fail", "skip", "rows"] = "fail",
    limit: int | None = None,
    to: Path | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
) -> TableDump:
    """Return the contents of segments, or of the files beside them, as a table that reads them again at each use.

    Args:
        paths: log directories, directories of partitions, files of segments, or globs of them.
        what: `records`, `batches`, `segments` or another table; default: the table that suits the kind of `paths`.
        offsets: only rows with offsets at or above A and below B, as `A:B`; either side may be empty.
        timestamps_ms: only rows with timestamps at or above A and below B, as `A:B`.
        partitions: names or globs of partitions to select.
        allow_empty_selection: accept a name or glob that matches nothing.
        last: return only the last records of each partition, at most this many.
        key: only records with one of these keys.
        key_format: format of `key`.
        header: only records with all of these headers, as `NAME=VALUE`, or `NAME` for any value.
        columns: names of the columns to return, in this order; default: all.
        config: the broker's server.properties, for the table `topics`.
        replicas: `best`: read the best replica of each partition; `all`: read all replicas, with the columns `node_id`
            and `log_dir`; default: `best`, and `all` for the table `indexes`.
        as_topic: read the records as those of this internal topic, whatever the name of their directory.
        keys: read the keys of records, but not their values.
        isolation: isolation level, as in a consumer.
        on_corruption: `fail`: raise an error at a corrupt batch; `skip`: skip the batch; `rows`: return a row for the
            batch.
        limit: return at most this many rows; default: all.
        to: write all rows as Parquet into this new directory.
        master: URL of a Spark master, for a session that this call starts to write the Parquet.
        spark: a running session that writes the Parquet; it is never stopped.

    Raises:
        UsageError: an option is wrong, or `to` exists.
        SedimentError: a file cannot be read.
    """
    keywords = locals()
    from sediment.jobs import dump as job

    return call_plainly(job.command, job.perform, keywords)


def history(
    ledger: Path,
    *,
    run: str | None = None,
    partitions: Texts = (),
    last: int = 20,
    replay: Paths = (),
) -> HistoryReport:
    """Return the runs in a ledger, newest first.

    Args:
        ledger: path or URI of the ledger.
        run: id of a single run to return.
        partitions: names or globs of the partitions to return.
        last: return at most this many runs.
        replay: files with the JSON reports of runs; those runs that the ledger lacks are added before it is read.

    Raises:
        UsageError: the ledger or the run does not exist.
        SedimentError: the ledger cannot be read.
    """
    keywords = {**locals(), "path": ledger}
    from sediment.jobs import history as job

    return call_plainly(job.command, job.perform, keywords)
