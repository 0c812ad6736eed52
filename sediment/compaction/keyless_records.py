"""The rule for records without a key in a compacted topic: a cleaning that would mostly drop such records is refused.

Kafka's cleaner drops every record without a key, and brokers refuse to append one to a compacted topic.  So a log has
such records only if its cleanup.policy was changed, and then the policy, not the records, may be the mistake.
"""

from __future__ import annotations

KEYLESS_RECORDS = "keyless-records"
"""Reason code of a partition that is left alone because of this rule."""


def loses_mostly_keyless(records_without_key: int, dropped: int) -> bool:
    return 2 * records_without_key > dropped


def why_left_alone(
    records_without_key: int, dropped: int, *, about: str = "", to_drop: str = "give --drop-keyless"
) -> str:
    """Return the reason for an operator; `about` precedes estimates, and `to_drop` says how to drop the records."""
    which = f"{about}{records_without_key:,} of the {about}{dropped:,} records that compaction would drop have"
    if dropped == 1:
        which = f"{about}the only record that compaction would drop has"
    return (
        f"{which} no key, and compaction keeps no record without a key; check whether the topic's cleanup.policy "
        f"should contain compact, then {to_drop}"
    )
