"""Warnings about segments that retention judges by a date that looks wrong."""

from __future__ import annotations

from sediment.retention.policy import RetentionConfig, RetentionPlan, Rule
from sediment.segment_io.dates import suspect_date


def date_warnings(plan: RetentionPlan, config: RetentionConfig, *, now_ms: int) -> tuple[str, ...]:
    if not config.deletes or config.retention_ms < 0 or config.is_tiered:
        return ()
    warnings = []
    deleted = [
        (fate.segment.base_offset, dated)
        for fate in plan.deleted
        if fate.rule is Rule.TIME and (dated := suspect_date(fate.segment.largest_timestamp_ms, now_ms))
    ]
    if deleted:
        base_offset, dated = deleted[0]
        which = f"segment {base_offset} and {len(deleted) - 1} more" if len(deleted) > 1 else "the segment"
        warnings.append(
            f"the newest record of segment {base_offset} is {dated}, and by such a date retention.ms deletes {which}"
        )
    for fate in plan.kept:
        if fate.segment.largest_timestamp_ms > now_ms and (
            dated := suspect_date(fate.segment.largest_timestamp_ms, now_ms)
        ):
            warnings.append(
                f"the newest record of segment {fate.segment.base_offset} is {dated}, and until that date retention.ms "
                "keeps this segment and all later ones"
            )
            break
    return tuple(warnings)
