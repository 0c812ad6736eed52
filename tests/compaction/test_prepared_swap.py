"""A prepared swap as JSON: parsing restores the same swap, and rejects everything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.compaction.prepared_swap import (
    CleanedGroup,
    CleanStats,
    PartFile,
    PartSegment,
    PreparedSwap,
    swap_from_json,
    swap_to_json,
)
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt, SegmentFileKind, TopicPartition, part_file_name, segment_file_name
from sediment.segment_io.partition.listing import SegmentRef

counts = st.integers(0, INT64_MAX)
sizes = st.none() | counts
# Kafka allows no topic of these two names.
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True).filter(lambda name: name not in (".", ".."))
runs = st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
attempts = st.from_regex(r"[0-9]{1,3}\.[0-9]\.[0-9]{1,4}", fullmatch=True)


@st.composite
def part_segments(draw: st.DrawFn) -> PartSegment:
    base = draw(counts)
    kinds = [SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX]
    kinds += [SegmentFileKind.TRANSACTION_INDEX] * draw(st.booleans())
    run, attempt = draw(runs), draw(attempts)
    return PartSegment(
        base,
        tuple(
            PartFile(part_file_name(base, kind, Attempt(run, attempt)), segment_file_name(base, kind), draw(counts))
            for kind in kinds
        ),
    )


groups = st.builds(
    CleanedGroup,
    st.lists(st.builds(SegmentRef, counts, counts, sizes, sizes, sizes, counts), min_size=1, max_size=3).map(tuple),
    st.lists(part_segments(), max_size=2).map(tuple),
    st.builds(CleanStats, counts, counts, counts, counts, counts),
)
swaps = st.builds(
    PreparedSwap,
    st.builds(TopicPartition, topics, st.integers(0, 9999)),
    st.text(min_size=1, max_size=20),
    st.lists(groups, max_size=3).map(tuple),
    counts,
)

PART = PartFile("00000000000000000000.log.abc-0.1.2.part", "00000000000000000000.log", 7)
SWAP = PreparedSwap(
    TopicPartition("t", 0),
    "/logs/t-0",
    (CleanedGroup((SegmentRef(0, 70, 8, 12, None, 1),), (PartSegment(0, (PART,)),), CleanStats(2, 1, 70, 7, 0)),),
    5,
)


@given(swaps)
@settings(max_examples=80, deadline=None)
def test_a_swap_comes_back_from_its_json(swap):
    assert swap_from_json(swap_to_json(swap)) == swap
    assert swap_from_json(swap_to_json(swap).encode()) == swap


def changed(**fields):
    return json.dumps({**json.loads(swap_to_json(SWAP)), **fields})


def with_part(**fields):
    document = json.loads(swap_to_json(SWAP))
    document["groups"][0]["parts"][0]["files"][0].update(fields)
    return json.dumps(document)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        changed(schema=2),
        changed(partition="t"),
        changed(partition="t-0.0123-delete"),
        changed(partition=7),
        changed(directory=None),
        changed(next_dirty_offset=-1),
        changed(next_dirty_offset=2**63),
        changed(next_dirty_offset=True),
        changed(groups={}),
        changed(groups=[{}]),
        changed(surplus=1),
        with_part(part_name="../t-1/00000000000000000000.log.abc-0.1.2.part"),
        with_part(part_name="00000000000000000000.log"),
        with_part(part_name="00000000000000000000.log.swap"),
        with_part(part_name="00000000000000000001.log.abc-0.1.2.part"),
        with_part(part_name="0.log.abc-0.1.2.part"),
        with_part(final_name="00000000000000000000.index"),
        with_part(final_name="/etc/passwd"),
        with_part(size_bytes=1.5),
    ],
)
def test_anything_else_is_refused_in_one_sentence(content):
    with pytest.raises(CorruptDataError) as caught:
        swap_from_json(content, path="/hand-off/x.json")
    assert "not a prepared swap" in str(caught.value) and "/hand-off/x.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_parts_are_named_in_order():
    assert SWAP.parts() == (PART,)
