"""What became of the tests of each release, for the table of tested versions."""

from __future__ import annotations

import pytest

from tests.support_tables import FAILED, PASSED, VERSIONS, Row, record
from tests.versions.releases import RELEASES, Release

HAS_PASSED = pytest.StashKey[bool]()
"""What the conftest notes on each test."""

_MIGRATION = "migration"
_NAMES = [*map(str, RELEASES), _MIGRATION]


def note_outcomes(request: pytest.FixtureRequest, release: Release) -> None:
    """Record what became of the module's tests of a release, if all of them were run."""
    items = [each for each in request.session.items if _release_of(each) == release]
    if {each.originalname for each in items} != {name for name in vars(request.module) if name.startswith("test_")}:
        return
    passed = all(each.stash.get(HAS_PASSED, False) for each in items)
    record(VERSIONS, row_of(release, PASSED if passed else FAILED), _NAMES)


def note_migration(release: Release, seen: str) -> None:
    """Record what became of the cluster that was killed in its migration from ZooKeeper to KRaft."""
    row = row_of(release, seen)
    record(VERSIONS, Row(_MIGRATION, {**row.tried, "metadata in": "ZooKeeper, migrated to KRaft"}, seen), _NAMES)


def row_of(release: Release, seen: str) -> Row:
    """Return the release's row of the table."""
    tried = {
        "Kafka": release.version,
        "metadata in": "ZooKeeper" if release.with_zookeeper else "KRaft",
        "message formats": "0, 1, 2" if release.old_formats else "2",
        "codecs": ", ".join(release.codecs),
    }
    return Row(str(release), tried, seen)


def _release_of(item: pytest.Item) -> Release | None:
    return item.callspec.params.get("written") if hasattr(item, "callspec") else None
