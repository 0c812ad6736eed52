"""Rewriting the records with given keys in one scan: the result is that of a search and a rewrite by offsets."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.plan import KeyVerdicts, RewrittenSegment, plan_key_rewrite
from sediment.compaction.rewrite.segment_rewrite import rewrite_segment
from sediment.compaction.rewrite.verdicts import Action, Reason
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.segment import reader
from tests.logs import LogShape, write_random_log
from tests.rewrites import rewrite_both, view_of, visible_records
from tests.segments import batch_bytes, write_segment
from tests.twin.batches import crc32c_of
from tests.twin.rewrite import Change, Verdict

SHAPES = {
    "plain": LogShape(),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), tombstones=0.3),
    "producers": LogShape(transactional=0.2, idempotent=0.8, most_records=2, segment_bytes=6000),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
}
ACTIONS = {
    Action.DROP: Verdict(Change.DROP),
    Action.TOMBSTONE: Verdict(Change.TOMBSTONE),
    Action.REPLACE_VALUE: Verdict(Change.VALUE, b"masked"),
}
CONFIG = CompactionConfig(index_interval_bytes=300)


class ReadOnlyFs(Fs):
    """A filesystem on which no file can be written."""

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        raise AssertionError(f"{path} is written")


def rewritten(
    directory: Path,
    keys: Iterable[bytes],
    action: Action,
    *,
    checkpoints: PartitionCheckpoints | None = None,
    fs: Fs | None = None,
) -> list[RewrittenSegment]:
    by_key = KeyVerdicts(KeySet.of(keys), action, ACTIONS[action].content)
    return [
        rewrite_segment(task, fs or Fs(), Attempt("r", "0"), by_key=by_key)
        for task in plan_key_rewrite(view_of(directory, checkpoints), CONFIG)
    ]


@pytest.mark.parametrize("chunk_bytes", [400, 1 << 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_new_files_are_those_of_a_rewrite_by_offsets(
    shape: str, seed: int, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader, "CHUNK_BYTES", chunk_bytes)
    directory = tmp_path / "t-0"
    end = write_random_log(directory, seed, SHAPES[shape])
    checkpoints = PartitionCheckpoints(clean_shutdown=True, high_watermark=end - 40 if seed % 2 else None)
    pick = random.Random(seed)
    records = visible_records(directory, committed=False)
    every = sorted({record.key for record in records.values() if record.key is not None})
    keys = set(pick.sample(every, k=max(1, len(every) // pick.choice((1, 4, 20)))))
    action = list(ACTIONS)[seed]
    found = sorted(offset for offset, record in records.items() if record.key in keys)
    other = shutil.copytree(directory, tmp_path / "by-offsets" / "t-0")

    done = rewritten(directory, keys, action, checkpoints=checkpoints)
    by_offsets = rewrite_both(other, dict.fromkeys(found, ACTIONS[action]), checkpoints=checkpoints).done

    matches = [each.matches for each in done if each.matches is not None]
    assert np.concatenate([each.offsets for each in matches]).tolist() == found
    assert sum(each.scanned for each in matches) == len(records)
    stays = [offset for each in done for offset in each.not_reached.offsets.tolist()]
    assert stays == by_offsets.not_reached.offsets.tolist()
    changed = [each.group for each in done if each.group.parts]
    expected = [each.group for each in by_offsets.segments if each.group.parts]
    assert [(each.sources, each.stats) for each in changed] == [(each.sources, each.stats) for each in expected]
    for group in changed:
        for part in group.parts:
            for file in part.files:
                assert (directory / file.part_name).read_bytes() == (other / file.final_name).read_bytes()


def test_nothing_is_written_if_no_record_changes(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0, "ab"), batch_bytes(2, "c", value=None)])
    assert not any(each.group.parts for each in rewritten(tmp_path, [b"x"], Action.DROP, fs=ReadOnlyFs()))
    (done,) = rewritten(tmp_path, [b"c"], Action.TOMBSTONE, fs=ReadOnlyFs())
    assert done.matches is not None
    assert (done.group.parts, done.matches.offsets.tolist(), done.stats.scanned) == ((), [2], 3)


def test_matches_that_are_not_replicated_are_named_and_stay(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0, "ab"), batch_bytes(2, "ab"), batch_bytes(4, "a")])
    checkpoints = PartitionCheckpoints(clean_shutdown=True, high_watermark=3)
    (done,) = rewritten(tmp_path, [b"a"], Action.DROP, checkpoints=checkpoints)
    assert done.stats.dropped == 1
    assert done.not_reached.offsets.tolist() == [2, 4]
    assert done.not_reached.by_reason() == {Reason.ABOVE_HIGH_WATERMARK: 2}


def test_zeros_after_the_last_batch_keep_a_segment_from_being_rewritten(tmp_path: Path):
    path = write_segment(tmp_path, 0, [batch_bytes(0, "ab")])
    path.write_bytes(path.read_bytes() + bytes(5000))
    (done,) = rewritten(tmp_path, [b"x"], Action.DROP)
    assert done.group.parts == ()
    with pytest.raises(CorruptBatchError):
        rewritten(tmp_path, [b"a"], Action.DROP)
    assert not list(tmp_path.glob("*.part"))


def test_a_match_whose_batch_does_not_contain_its_offset_is_named(tmp_path: Path):
    batch = bytearray(batch_bytes(0, "ab"))
    batch[23:27] = bytes(4)  # the batch says that its last offset is 0
    batch[17:21] = crc32c_of(bytes(batch[21:])).to_bytes(4, "big")
    write_segment(tmp_path, 0, [bytes(batch), batch_bytes(2, "c")])
    (done,) = rewritten(tmp_path, [b"b"], Action.DROP)
    assert done.matches is not None
    assert (done.matches.offsets.tolist(), done.group.parts) == ([1], ())
    assert done.not_reached.by_reason() == {Reason.NO_RECORD: 1}
