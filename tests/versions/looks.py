"""Everything that the consumers of a release tell of a cluster: records, ends and the offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.consumers import COMMITTED, ISOLATIONS, UNCOMMITTED

_NO_TIMESTAMP_TYPE = "NoTimestampType"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a Java consumer gets it; keys and values in base64, or null."""

    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: str
    value: str
    headers: str


@dataclass(frozen=True, slots=True)
class Look:
    """`records` by isolation level and partition; `ends` are (log start, high watermark, last stable offset).

    `offsets` are committed offsets with their metadata, by group and partition.
    """

    records: Mapping[str, Mapping[str, tuple[Record, ...]]]
    ends: Mapping[str, tuple[int, int, int]]
    offsets: Mapping[tuple[str, str], tuple[int, str]]

    def latest(self, isolation: str) -> dict[tuple[str, str], Record]:
        """Return the last record of each key of a partition, tombstones left out.

        Aborted records count for no isolation level: a compaction may remove them.
        """
        found: dict[tuple[str, str], Record] = {}
        for name, records in self.records[isolation].items():
            aborted = self.aborted(name)
            for record in records:
                if record.offset not in aborted:
                    found[name, record.key] = record
        return {key: record for key, record in found.items() if record.value != "null"}

    def aborted(self, name: str) -> frozenset[int]:
        """Return the offsets below the last stable one that a consumer of committed data does not get."""
        stable = self.ends[name][2]
        every = {record.offset for record in self.records[UNCOMMITTED][name] if record.offset < stable}
        return frozenset(every - {record.offset for record in self.records[COMMITTED][name]})

    def of_format_2(self) -> Look:
        """Return what consumers see after messages of format 0 have become those of format 2."""
        return Look(
            {
                isolation: {
                    name: tuple(
                        Record(each.offset, each.timestamp_ms, "CreateTime", each.key, each.value, each.headers)
                        if each.timestamp_type == _NO_TIMESTAMP_TYPE
                        else each
                        for each in records
                    )
                    for name, records in of_level.items()
                }
                for isolation, of_level in self.records.items()
            },
            self.ends,
            self.offsets,
        )


def parse_look(lines: Iterable[str]) -> Look:
    """Return what VersionClient.java printed."""
    records: dict[str, dict[str, list[Record]]] = {isolation: {} for isolation in ISOLATIONS}
    ends: dict[str, tuple[int, int, int]] = {}
    offsets: dict[tuple[str, str], tuple[int, str]] = {}
    for line in lines:
        kind, *words = line.split("\t")
        if kind == "record":
            name, isolation, offset, timestamp, *others = words
            records[isolation].setdefault(name, []).append(Record(int(offset), int(timestamp), *others))
        elif kind == "end":
            # The client prints both numbers for committed data, and then the high watermark.
            name, start, stable, high = words
            ends[name] = int(start), int(high), int(stable)
        elif kind == "offset":
            name, group, offset, metadata = words
            offsets[group, name] = int(offset), metadata
    whole = {
        isolation: {name: tuple(of_level.get(name, ())) for name in ends} for isolation, of_level in records.items()
    }
    return Look(whole, ends, offsets)


def assert_same_latest(before: Look, after: Look) -> None:
    """Assert that a compaction changed nothing that a consumer of the latest values, or a group, relies on."""
    before, after = before.of_format_2(), after.of_format_2()
    assert after.ends == before.ends
    assert after.offsets == before.offsets
    for isolation in ISOLATIONS:
        assert after.latest(isolation) == before.latest(isolation)
        for name, records in after.records[isolation].items():
            assert set(records) <= set(before.records[isolation][name]), name
