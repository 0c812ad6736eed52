"""Topics that are known by their names, under a cleanup.policy that deletes what they need."""

from __future__ import annotations

import pytest

from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.resolve import Settings

LATEST = (
    *(
        "_schemas",
        "prod._schemas",
        "connect-offsets",
        "_connect-configs",
        "my-connect-cluster-status",
        "connect_status",
    ),
    *("mm2-offsets.west.internal", "orders-store-changelog", "__consumer_offsets", "__transaction_state"),
)
WHOLE = ("schema-changes.inventory", "dbhistory.inventory", "db-history", "schemahistory", "x.schema_history.y")
OTHER = ("orders", "reconnect-status-log", "changelog", "schemas-old", "history", "dbhistoryx", "connect")


def warning(topic: str, policy: str, *, expires: bool = True, **keys: str) -> str | None:
    sets = {"cleanup.policy": policy, **{key.replace("_", "."): value for key, value in keys.items()}}
    config = Settings(topic_sets={topic: sets}, broker_defaults=True).for_topic(topic)
    return policy_warning(topic, config, expires=expires)


@pytest.mark.parametrize("topic", LATEST)
def test_state_by_key_needs_compaction(topic):
    assert "needs the newest record of every key" in (warning(topic, "delete") or "")
    assert "set cleanup.policy=compact" in (warning(topic, "delete", retention_ms="-1", retention_bytes="9") or "")
    assert warning(topic, "compact") is None
    assert warning(topic, "delete", retention_ms="-1") is None
    assert warning(topic, "delete", expires=False) is None


def test_a_changelog_of_windows_may_also_expire_but_other_state_may_not():
    assert warning("counts-changelog", "compact,delete") is None
    assert warning("_schemas", "compact,delete") is not None


@pytest.mark.parametrize("topic", WHOLE)
def test_a_history_needs_all_of_its_records(topic):
    assert "retention.ms=604800000 deletes old records" in (warning(topic, "delete") or "")
    assert "drops records without a key" in (warning(topic, "compact", expires=False) or "")
    assert warning(topic, "delete", retention_ms="-1") is None


@pytest.mark.parametrize("topic", OTHER)
def test_other_names_say_nothing(topic):
    for policy in ("delete", "compact", "compact,delete"):
        assert warning(topic, policy) is None
