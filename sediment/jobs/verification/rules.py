"""Rules of a correct compaction, as queries over the batches and records of two logs.

    batches --window by producer--> the marker that decides each       --join on base offset--> differences of batches
    records --exchange by key--> one row per offset --window by key, from the log's end--> differences of records

A record may be missing if it was aborted, had no key, had a later record of its key below the limit, or was a tombstone
past its delete horizon.  A record that remains must be unchanged.  In addition, the last committed record of each key
is compared, independently of these reasons.

Invariants: the cleaner's code is not used.  Every difference is a row (pair, check, offset, what).  Every shuffle is by
key or by batch.  Every window runs in one direction with a growing frame, so memory does not grow with the records of a
key.

Source: kafka-log 02 §6, §7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sediment.jobs.verification.cleaned_range import CleanedRange
from sediment.jobs.verification.rows import AFTER, BEFORE, CONTROL, CORRUPT, DATA
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT64_MAX,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ABORT, COMMIT = "ABORT", "COMMIT"

_LOST = "lost"
_EMPTY_BITS = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_KNOWN_BITS = CODEC_MASK | _EMPTY_BITS | DELETE_HORIZON_BIT
_HEADER_FIELDS = {
    "lastOffset": "last offset",
    "leaderEpoch": "leader epoch",
    "producerId": "producer id",
    "producerEpoch": "producer epoch",
    "baseSequence": "base sequence",
    "transactional": "transactional bit",
    "control": "control bit",
    "timestampType": "timestamp type",
}


@dataclass(frozen=True, slots=True)
class PairRules:
    """Parameters of the queries for one pair.

    `since_ms`: the clock of the first of several cleanings between the two logs; None if there was one cleaning, at
    `now_ms` if `now_is_exact`, else at some time before.  `stable_before` and `stable_after` are last stable offsets.
    `legacy_end`: all batches of magic 0 or 1 in BEFORE are below it.  `corrupt_from`: the base offset of the first
    segment of BEFORE with unreadable batches; None: every batch is readable.  `delete_retention_ms` and
    `producer_id_expiration_ms` None: no setting states them.  Then every new delete horizon is wrong, and no producer
    expires.
    """

    cleaned: CleanedRange
    stable_before: int
    stable_after: int
    legacy_end: int
    corrupt_from: int | None
    delete_retention_ms: int | None
    producer_id_expiration_ms: int | None
    now_ms: int
    now_is_exact: bool
    since_ms: int | None

    def new_horizons(self) -> tuple[int, int] | None:
        """Return the lowest and the highest new delete horizon of a cleaning; None if it could write none."""
        if self.delete_retention_ms is None:
            return None
        earliest_ms = self.now_ms if self.now_is_exact else 0
        if self.since_ms is not None:
            earliest_ms = self.since_ms
        return _saturated(earliest_ms + self.delete_retention_ms), _saturated(self.now_ms + self.delete_retention_ms)

    def first_round_horizon(self) -> int | None:
        """Return the horizon that the first of several cleanings wrote; None if it wrote none or was the only one."""
        if self.since_ms is None or self.delete_retention_ms is None:
            return None
        return _saturated(self.since_ms + self.delete_retention_ms)

    def idle_since_ms(self) -> int:
        """Return the time up to which a producer's last timestamp means that the producer has expired."""
        if self.producer_id_expiration_ms is None:
            return -INT64_MAX
        return max(self.now_ms - self.producer_id_expiration_ms, -INT64_MAX)


def _saturated(time_ms: int) -> int:
    """Return a delete horizon as stored in a batch: at most the largest int64."""
    return min(time_ms, INT64_MAX)


def _shown(time_ms: int | None) -> int | None:
    """Return a time with the upper limit of the tables, whose microseconds end at an earlier time."""
    return None if time_ms is None else min(time_ms, INT64_MAX // 1000)


def rules_frame(rules: Mapping[int, PairRules], spark: SparkSession) -> DataFrame:
    """Return a row for each pair, for joins."""
    from pyspark.sql import functions as f

    schema = (
        "pair int, dirty bigint, limit bigint, end bigint, claimed boolean, legacy_expired array<bigint>, "
        "stable_before bigint, stable_after bigint, legacy_end bigint, corrupt_from bigint, retention_ms bigint, "
        "lowest_horizon bigint, highest_horizon bigint, first_horizon bigint, idle_since_ms bigint, now_ms bigint, "
        "since_ms bigint"
    )
    rows = [
        (
            pair,
            rule.cleaned.first_dirty,
            rule.cleaned.limit,
            rule.cleaned.end,
            rule.cleaned.is_claimed,
            list(rule.cleaned.legacy_expired),
            rule.stable_before,
            rule.stable_after,
            rule.legacy_end,
            rule.corrupt_from,
            rule.delete_retention_ms,
            *map(_shown, rule.new_horizons() or (None, None)),
            _shown(rule.first_round_horizon()),
            rule.idle_since_ms(),
            _saturated(rule.now_ms),
            rule.since_ms,
        )
        for pair, rule in rules.items()
    ]
    return f.broadcast(spark.createDataFrame(rows, schema))


# -------------------------------------------------------------------------------------------------------------- batches
def with_decisions(batches: DataFrame) -> DataFrame:
    """Return the valid `batches` with `marker` and `outcome`: offset and type of the marker that decides a data batch.

    Both are null outside a transaction and in an open transaction.  `in_transaction`: a data batch of a transaction.
    `disorder`: the batch's offsets are not above those of the batch before it in the segment.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    is_marker = f.col("control") & f.col("controlType").isin(ABORT, COMMIT)
    in_transaction = f.col("transactional") & ~f.col("control")
    in_transactions = is_marker | in_transaction
    behind = (
        Window.partitionBy(
            "pair", "side", f.when(in_transactions, f.col("producerId")), f.when(~in_transactions, f.col("segment"))
        )
        .orderBy(f.desc("baseOffset"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    marker = f.when(is_marker, f.struct(f.col("baseOffset").alias("offset"), f.col("controlType").alias("outcome")))
    in_segment = Window.partitionBy("pair", "side", "segment").orderBy("position")
    good = batches.where("valid and corruption is null and baseOffset is not null")
    decided = good.withColumn("decision", f.when(in_transaction, f.last(marker, ignorenulls=True).over(behind)))
    return decided.select(
        *good.columns,
        in_transaction.alias("in_transaction"),
        f.col("decision.offset").alias("marker"),
        f.col("decision.outcome").alias("outcome"),
        f.coalesce(f.lag("lastOffset").over(in_segment) >= f.col("baseOffset"), f.lit(False)).alias("disorder"),
    )


def segment_facts(decided: DataFrame) -> DataFrame:
    """Return a row for each segment of either log: facts on its batches, and on its open and aborted transactions."""
    from pyspark.sql import functions as f

    return decided.groupBy("pair", "side", "segment").agg(
        f.min("baseOffset").alias("first_offset"),
        f.max("lastOffset").alias("last_offset"),
        f.max("maxTimestamp").alias("largest_ms"),
        f.sum(f.col("disorder").cast("long")).alias("disorder"),
        f.sum("recordCount").alias("records"),
        f.min(f.when(f.col("in_transaction") & f.col("outcome").isNull(), f.col("baseOffset"))).alias("first_open"),
        f.max(f.when(f.col("magic") < 2, f.col("lastOffset"))).alias("last_legacy"),
        f.sum((f.col("outcome") == ABORT).cast("long")).alias("aborted"),
        f.sum((f.col("producerId") >= 0).cast("long")).alias("of_producers"),
    )


def corruption_differences(batches: DataFrame) -> DataFrame:
    """Return the batches of AFTER that are unreadable or have a wrong checksum, unless BEFORE has the same bytes."""
    from pyspark.sql import functions as f

    bad = batches.where("not coalesce(valid, false) or corruption is not null").withColumn(
        "identity", f.xxhash64("size", "crc", "baseOffset", "lastOffset", f.col("corruption").isNull())
    )
    known = bad.where(f.col("side") == BEFORE).select("pair", "identity").distinct()
    fresh = bad.where(f.col("side") == AFTER).join(known, ["pair", "identity"], "left_anti")
    wrong = f.concat(f.lit("the checksum of the batch is wrong (segment "), _text("segment"), f.lit(", position "))
    return fresh.select(
        "pair",
        f.lit("crc").alias("check"),
        f.col("baseOffset").alias("offset"),
        f.coalesce("corruption", f.concat(wrong, _text("position"), f.lit(")"))).alias("what"),
    )


def batch_differences(decided: DataFrame, rules: DataFrame, *, with_producers: bool) -> DataFrame:
    """Return the differences of batches and markers; skip the checks of transactions if no batch has a producer."""
    from pyspark.sql import functions as f

    before = decided.where(f.col("side") == BEFORE)
    after = decided.where(f.col("side") == AFTER)
    joined = (
        _sided(before, "b_")
        .join(_sided(after, "a_"), f.expr("b_pair = a_pair and b_baseOffset = a_baseOffset"), "full_outer")
        .withColumn("pair", f.coalesce("b_pair", "a_pair"))
        .join(rules, "pair")
    )
    if with_producers:
        joined = _with_protection(joined, before)
    else:
        joined = joined.withColumns({"protected": f.lit(False), "marked": f.lit(False)})
    both = "b_pair is not null and a_pair is not null"
    rules_of_batches = [*_gone(), *_new(), *_header(both), *_rebuilt(), *_horizon(both), *_decision(both)]
    return _rows(joined, rules_of_batches, offset="coalesce(b_baseOffset, a_baseOffset)")


def _with_protection(joined: DataFrame, before: DataFrame) -> DataFrame:
    """Add two flags: the batch of BEFORE is the last one of an active producer; the marker decides a batch."""
    from pyspark.sql import functions as f

    telling = before.where("producerId >= 0 and (not control or controlType is not null)")
    last = telling.groupBy("pair", "producerId").agg(
        f.max(f.struct("baseOffset", "producerEpoch", "maxTimestamp")).alias("last"),
        f.max(f.when(~f.col("control"), f.struct("baseOffset", "producerEpoch"))).alias("data"),
    )
    protected = last.select(
        f.col("pair").alias("p_pair"),
        f.when(f.col("data.producerEpoch") == f.col("last.producerEpoch"), f.col("data.baseOffset"))
        .otherwise(f.col("last.baseOffset"))
        .alias("p_offset"),
        f.col("last.maxTimestamp").alias("p_time_ms"),
    )
    marked = (
        before.where("marker is not null").select(f.col("pair").alias("m_pair"), f.col("marker").alias("m_offset"))
    ).distinct()
    return (
        joined.join(protected, f.expr("b_pair = p_pair and b_baseOffset = p_offset"), "left")
        .join(marked, f.expr("b_pair = m_pair and b_baseOffset = m_offset"), "left")
        .withColumns(
            {
                "protected": f.expr("p_pair is not null and p_time_ms > idle_since_ms"),
                "marked": f.expr("m_pair is not null"),
            }
        )
    )


_Rules = list[tuple[str, str, str]]

# Condition under which a tombstone or marker may be missing: its batch had its horizon in BEFORE, or got it in the
# first of several cleanings. An unreadable batch below it may hold an older record of its key, which would become the
# latest value.
_HORIZON = "coalesce({name}, first_horizon)"
_SAFE = "(corrupt_from is null or {offset} < corrupt_from)"
_PASSED = f"coalesce({_HORIZON.format(name='b_deleteHorizon')} <= now_ms, false)"


def _gone() -> _Rules:
    gone = "b_pair is not null and a_pair is null"
    batch = "concat('the batch ', b_baseOffset, '–', b_lastOffset, ' '"
    marker = "b_control and b_controlType is not null"
    return [
        ("untouched", f"{gone} and b_segment >= end", f"{batch}, 'above the cleaned range is gone')"),
        (
            "markers",
            f"{gone} and b_segment < end and {marker} and not "
            f"(b_controlType in ('{ABORT}', '{COMMIT}') and {_PASSED} and {_SAFE.format(offset='b_baseOffset')})",
            "concat('the ', b_controlType, ' record of producer ', b_producerId, ' is gone, ', "
            "case when b_deleteHorizon is null then 'and its batch had no delete horizon' "
            "else concat('before its delete horizon ', b_deleteHorizon) end)",
        ),
        (
            "producers",
            f"{gone} and b_segment < end and protected",
            f"{batch}, 'is the last of producer ', b_producerId, ', whose state is lost')",
        ),
    ]


def _new() -> _Rules:
    return [
        (
            "batches",
            "b_pair is null and a_baseOffset >= legacy_end",
            "concat('the batch ', a_baseOffset, '–', a_lastOffset, ' has a base offset that no batch in BEFORE has')",
        )
    ]


def _header(both: str) -> _Rules:
    modern = f"{both} and b_magic = 2"
    fields: _Rules = [
        (
            "batches",
            f"{modern} and not b_{name} <=> a_{name}",
            f"concat('{label} ', a_{name}, ', in BEFORE ', b_{name})",
        )
        for name, label in _HEADER_FIELDS.items()
    ]
    full = f"{modern} and a_recordCount = b_recordCount and a_deleteHorizon <=> b_deleteHorizon"
    return [
        *fields,
        ("batches", f"{modern} and a_magic <> 2", "concat('magic ', a_magic, ', in BEFORE ', b_magic)"),
        (
            "batches",
            f"{both} and a_recordCount > 0 and a_codec <> b_codec",
            "concat('codec ', a_codec, ', in BEFORE ', b_codec)",
        ),
        (
            "batches",
            f"{modern} and a_recordCount > b_recordCount",
            "concat(a_recordCount, ' records, in BEFORE ', b_recordCount)",
        ),
        (
            "batches",
            f"{modern} and (a_maxTimestamp > b_maxTimestamp or a_maxTimestamp <> b_maxTimestamp "
            "and (a_timestampType = 1 or a_recordCount = b_recordCount or a_recordCount = 0 and since_ms is null))",
            "concat('largest timestamp ', a_maxTimestamp, ', in BEFORE ', b_maxTimestamp)",
        ),
        (
            "batches",
            f"{full} and (a_size <> b_size or a_crc <> b_crc)",
            "'it lost no record, but its bytes differ from those in BEFORE'",
        ),
    ]


def _rebuilt() -> _Rules:
    """Return the rules for a batch of AFTER whose bytes differ from BEFORE: its header must match its records."""
    rebuilt = "a_pair is not null and a_magic = 2 and not coalesce(a_size = b_size and a_crc = b_crc, false)"
    upgraded = f"{rebuilt} and coalesce(b_magic < 2, true)"
    records = "concat('its records have the offsets ', a_firstRecord, '–', a_lastRecord, ', its header has ', "
    return [
        ("order", f"{rebuilt} and a_descending", "'the offsets in the batch do not ascend'"),
        (
            "batches",
            f"{rebuilt} and (a_firstRecord < a_baseOffset or a_lastRecord > a_lastOffset) "
            f"or {upgraded} and (a_firstRecord > a_baseOffset or a_lastRecord < a_lastOffset)",
            f"{records} a_baseOffset, '–', a_lastOffset)",
        ),
        (
            "batches",
            f"{rebuilt} and a_largestRecord <> a_maxTimestamp",
            "concat('largest timestamp ', a_maxTimestamp, ', of its records ', a_largestRecord)",
        ),
        (
            "batches",
            f"{rebuilt} and a_attributes & ~if(a_recordCount = 0, {_EMPTY_BITS}, {_KNOWN_BITS}) <> 0",
            "concat('attributes ', a_attributes, ', with a bit that Kafka does not set')",
        ),
        (
            "batches",
            f"{rebuilt} and a_recordCount = 0 and a_size > {BATCH_HEADER_BYTES}",
            f"concat('no records, but ', a_size - {BATCH_HEADER_BYTES}, ' bytes after its header')",
        ),
    ]


def _horizon(both: str) -> _Rules:
    kept = f"{both} and b_magic = 2 and b_deleteHorizon is not null and a_recordCount > 0"
    fresh = "a_pair is not null and a_deleteHorizon is not null and (b_pair is null or b_deleteHorizon is null)"
    single = "since_ms is null"
    return [
        (
            "horizons",
            f"{kept} and not a_deleteHorizon <=> b_deleteHorizon",
            "concat('delete horizon ', coalesce(string(a_deleteHorizon), 'none'), ', in BEFORE ', b_deleteHorizon)",
        ),
        (
            "horizons",
            f"{fresh} and coalesce(not a_deleteHorizon between lowest_horizon and highest_horizon, true)",
            "if(retention_ms is null, concat('delete horizon ', a_deleteHorizon, ' is new, but no setting states "
            "delete.retention.ms; give it with --set'), concat('delete horizon ', a_deleteHorizon, "
            "', but delete.retention.ms is ', retention_ms, ' and it was ', now_ms))",
        ),
        (
            "horizons",
            f"{fresh} and ({single} or a_recordCount = b_recordCount) and not a_nullValue "
            f"and not coalesce(a_control and a_controlType in ('{ABORT}', '{COMMIT}'), false)",
            "'the batch got a delete horizon, but holds no tombstone'",
        ),
        (
            "markers",
            f"{both} and {single} and b_control and b_deleteHorizon is null and a_deleteHorizon is not null and marked",
            "'the marker got a delete horizon, but batches of its transaction were left'",
        ),
        (
            "markers",
            f"{both} and b_control and b_recordCount > 0 and a_recordCount = 0 and not {_PASSED}",
            "'the marker lost its record before its delete horizon'",
        ),
    ]


def _decision(both: str) -> _Rules:
    live = f"{both} and b_in_transaction"
    return [
        (
            "markers",
            f"{both} and b_control and a_recordCount > 0 and not b_controlType <=> a_controlType",
            "concat('the control record is ', coalesce(a_controlType, 'none'), ', in BEFORE ', b_controlType)",
        ),
        (
            "markers",
            f"{live} and not (b_marker <=> a_marker and b_outcome <=> a_outcome)",
            "concat('the batch of producer ', b_producerId, ' is ', "
            "case when b_outcome is null then 'of an open transaction' "
            "else concat('decided by the ', b_outcome, ' at offset ', b_marker) end, ' in BEFORE, and in AFTER ', "
            "case when a_outcome is null then 'by nothing' "
            "else concat('by the ', a_outcome, ' at offset ', a_marker) end)",
        ),
        (
            "aborted",
            f"{live} and claimed and corrupt_from is null and b_outcome = '{ABORT}' and a_recordCount > 0 "
            "and a_lastOffset < limit",
            "concat('records of producer ', b_producerId, ', whose transaction was aborted at offset ', b_marker, "
            "', are left')",
        ),
    ]


def transaction_index_differences(decided: DataFrame, entries: DataFrame) -> DataFrame:
    """Return batches of AFTER that its transaction index hides but should not, or should hide but does not.

    `entries` are rows of the table `transactions` with `pair`.
    """
    from pyspark.sql import functions as f

    batches = decided.where((f.col("side") == AFTER) & f.col("in_transaction")).alias("a")
    hidden = batches.join(
        entries.alias("e"),
        f.expr(
            "a.pair = e.pair and a.producerId = e.producerId and a.baseOffset between e.firstOffset and e.lastOffset"
        ),
        "left",
    )
    indexed = hidden.groupBy("a.pair", "a.baseOffset").agg(
        f.first("a.outcome").alias("outcome"), f.max(f.col("e.pair").isNotNull()).alias("hidden")
    )
    aborted = f"coalesce(outcome = '{ABORT}', false)"
    return _rows(
        indexed,
        [
            (
                "transaction_index",
                f"{aborted} and not hidden",
                "'the batch was aborted, but the transaction index has no entry for it'",
            ),
            (
                "transaction_index",
                f"not {aborted} and hidden",
                "'the transaction index has an entry for the batch, but it was not aborted'",
            ),
        ],
        offset="baseOffset",
    )


# -------------------------------------------------------------------------------------------------------------- records
def record_differences(
    records: DataFrame, decided: DataFrame, rules: DataFrame, *, partitions: int, with_aborted: bool
) -> DataFrame:
    """Return the differences of records, and of the latest value of each key.

    The keys are divided among `partitions` tasks.
    """
    from pyspark.sql import functions as f

    if with_aborted:
        aborted = decided.where(f.col("outcome") == ABORT).select(
            "pair", "side", f.col("baseOffset").alias("base"), f.lit(True).alias("aborted")
        )
        records = records.join(aborted, ["pair", "side", "base"], "left")
        records = records.withColumn("aborted", f.coalesce("aborted", f.lit(False)))
    else:
        records = records.withColumn("aborted", f.lit(False))
    by_key = records.repartition(partitions, "pair", "key", "spot")
    by_record = _with_later(_by_offset(by_key).join(rules, "pair"))
    found = _rows(by_record, _record_rules(), offset="offset", keep=("base", "tombstone"))
    return _settle_lost(found, decided, rules)


def _by_offset(records: DataFrame) -> DataFrame:
    """Return one row for each offset of a key, with the records of both logs."""
    from pyspark.sql import functions as f

    fields = ("base", "tombstone", "value_hash", "headers_hash", "timestamp_us", "producer_hash", "aborted")
    sides = (("b_", BEFORE), ("a_", AFTER))
    counts = [f.expr(f"sum(if(side = {side}, 1, 0)) as {prefix}count") for prefix, side in sides]
    values = [
        f.expr(f"max(if(side = {side}, {name}, null)) as {prefix}{name}") for prefix, side in sides for name in fields
    ]
    return records.groupBy("pair", "key", "spot", "kind", "offset").agg(*counts, *values)


def _with_later(rows: DataFrame) -> DataFrame:
    """Add the later records of the same key to each record, and its latest values to the first record of a key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    from_end = Window.partitionBy("pair", "key", "spot").orderBy(f.desc("offset"))
    above = from_end.rowsBetween(Window.unboundedPreceding, -1)
    down_to = from_end.rowsBetween(Window.unboundedPreceding, 0)
    keyed = f"kind = {DATA} and key is not null"
    mapped = f"{keyed} and b_count > 0 and not b_aborted and offset < limit"

    def latest(prefix: str, condition: str) -> Column:
        state = f.struct(
            f.col("offset"),
            f.col(f"{prefix}value_hash").alias("value_hash"),
            f.col(f"{prefix}tombstone").alias("tombstone"),
        )
        return f.first(f.when(f.expr(f"{keyed} and {condition}"), state), ignorenulls=True).over(down_to)

    return rows.withColumns(
        {
            "superseder": f.max(f.when(f.expr(mapped), f.col("offset"))).over(above),
            "dirty_superseder": f.max(f.when(f.expr(f"{mapped} and offset >= dirty"), f.col("offset"))).over(above),
            "is_first": f.lead("offset").over(from_end).isNull(),
            "b_committed": latest("b_", "b_count > 0 and not b_aborted and offset < stable_before"),
            "a_committed": latest("a_", "a_count > 0 and not a_aborted and offset < stable_after"),
            "b_any": latest("b_", "b_count > 0 and not b_aborted"),
            "a_any": latest(
                "a_", "a_count > 0 and not (coalesce(b_aborted, false) and (offset >= end or not claimed))"
            ),
            "base": f.coalesce("b_base", "a_base"),
            "tombstone": f.coalesce("b_tombstone", f.lit(False)),
        }
    )


def _record_rules() -> _Rules:
    gone, new, both = "b_count > 0 and a_count = 0", "b_count = 0", "b_count > 0 and a_count > 0"
    data = f"kind = {DATA}"
    live = f"{gone} and {data} and not (b_aborted and offset < end)"
    left = f"claimed and corrupt_from is null and {both} and {data} and not b_aborted and offset < limit"
    rules: _Rules = [
        ("crc", f"kind = {CORRUPT} and {new}", "'a batch of AFTER cannot be read, and BEFORE has no such bytes'"),
        ("crc", f"kind = {CORRUPT} and {gone}", "'a batch of BEFORE that cannot be read is gone'"),
        (
            "records",
            f"kind <> {CORRUPT} and {new}",
            "case when key is null then 'BEFORE has no such record' else 'BEFORE has no such record of this key' end",
        ),
        ("order", f"kind <> {CORRUPT} and a_count > greatest(b_count, 1)", "'the record appears more than once'"),
        (
            _LOST,
            f"{live} and key is null and offset >= limit",
            "'the record without a key is gone, but lies above the cleaned offsets'",
        ),
        (
            _LOST,
            f"{live} and key is not null and superseder is null",
            "'the record is gone, but its key has no later record'",
        ),
        (
            "superseded",
            f"{left} and key is not null and dirty_superseder is not null",
            "concat('a later record of its key, at offset ', dirty_superseder, ', lies below the cleaner checkpoint')",
        ),
        (
            "superseded",
            f"{left} and key is null",
            "'a record without a key lies below the cleaner checkpoint'",
        ),
    ]
    for name, label in (
        ("value_hash", "value"),
        ("headers_hash", "headers"),
        ("timestamp_us", "timestamp"),
        ("producer_hash", "producer, sequence, leader epoch or timestamp type"),
    ):
        rules.append(
            (
                "records",
                f"{both} and kind in ({DATA}, {CONTROL}) and not b_{name} <=> a_{name}",
                f"'the {label} of the record differs from BEFORE'",
            )
        )
    for check, name, label in (
        ("latest_committed", "committed", "read_committed"),
        ("latest_uncommitted", "any", "read_uncommitted"),
    ):
        rules.append(
            (
                check,
                f"is_first and {data} and key is not null and not (b_{name} <=> a_{name} "
                f"or a_{name} is null and b_{name}.tombstone)",
                f"concat('under {label}, the latest record of the key at this offset is ', "
                f"coalesce(concat('at ', a_{name}.offset), 'nothing'), ', in BEFORE ', "
                f"coalesce(concat('at ', b_{name}.offset), 'nothing'))",
            )
        )
    return rules


def _settle_lost(found: DataFrame, decided: DataFrame, rules: DataFrame) -> DataFrame:
    """Return `found` without tombstones whose batch is past its delete horizon."""
    from pyspark.sql import functions as f

    batches = decided.where(f.col("side") == BEFORE).select(
        f.col("pair").alias("h_pair"),
        f.col("baseOffset").alias("h_base"),
        "segment",
        "magic",
        f.col("deleteHorizon").alias("b_deleteHorizon"),
    )
    lost = f.col("check") == _LOST
    horizons = found.where(lost).join(batches, f.expr("pair = h_pair and base = h_base"), "left").join(rules, "pair")
    may_go = f.expr(
        f"tombstone and offset < limit and {_SAFE.format(offset='offset')} "
        f"and ({_PASSED} or magic < 2 and array_contains(legacy_expired, segment))"
    )
    young = f.expr(
        "concat('the tombstone is gone, ', "
        "case when b_deleteHorizon is null then 'and its batch had no delete horizon' "
        "else concat('before its delete horizon ', b_deleteHorizon) end)"
    )
    settled = horizons.where(~f.coalesce(may_go, f.lit(False))).select(
        "pair",
        f.when(f.col("tombstone"), "tombstones").otherwise(_LOST).alias("check"),
        "offset",
        f.when(f.col("tombstone"), young).otherwise(f.col("what")).alias("what"),
    )
    return found.where(~lost).select("pair", "check", "offset", "what").unionByName(settled)


# -------------------------------------------------------------------------------------------------------------- general
def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the differences of all `frames`."""
    return reduce(lambda one, other: one.unionByName(other), frames)


def _sided(batches: DataFrame, prefix: str) -> DataFrame:
    return batches.selectExpr(*(f"{name} as {prefix}{name}" for name in batches.columns))


def _rows(
    rows: DataFrame, rules: Sequence[tuple[str, str, str]], *, offset: str, keep: Sequence[str] = ()
) -> DataFrame:
    """Return a row for each rule (check, condition, text in SQL) whose condition holds in a row of `rows`."""
    from pyspark.sql import functions as f

    # One expression as text, because each column made in Python takes a call to the JVM, and there are hundreds of
    # them.
    differences = ", ".join(
        f"if({condition}, named_struct('check', '{check}', 'offset', {offset}, 'what', {what}), null)"
        for check, condition, what in rules
    )
    found = f.expr(f"explode(filter(array({differences}), difference -> difference is not null))")
    return rows.select("pair", *keep, found.alias("difference")).select("pair", "difference.*", *keep)


def _text(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(name).cast("string")
