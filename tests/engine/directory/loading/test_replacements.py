"""Random mixes of leftovers of replacements: no record of an intact log is lost without a report."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.faults.faulty_fs import read_image
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.segments import file_batches

PARTITION = TopicPartition("t", 0)
SUFFIXES = (".log", ".index", ".timeindex")
BATCHES = 4
SEGMENTS = 6
BATCH_BYTES = len(batch_bytes(0))


def name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def batch(offset: int) -> bytes:
    return batch_bytes(offset, timestamp=NOW_MS + offset)


@dataclass
class Mix:
    """A directory, the offsets of its whole logs by base, and the ranges of its whole replacements."""

    directory: Path
    clean: bool
    recovery_point: int
    held: dict[int, list[int]] = field(default_factory=dict)
    replacements: list[tuple[int, int]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    def is_replaced(self, base: int) -> bool:
        return any(low <= base < high for low, high in self.replacements)


def spoil(chance: random.Random, log: Path, *, may_end_at_a_batch: bool) -> None:
    """Change a log so that its framing, a checksum or its indexes show it."""
    content = log.read_bytes()
    kind = chance.choice(["cut", "cut", "empty", "flip", "zeros", "noise"])
    if kind == "cut":
        cut = chance.randrange(len(content))
        content = content[: cut if may_end_at_a_batch or cut % BATCH_BYTES else cut + 1]
    elif kind == "empty":
        content = b""
    elif kind == "flip":
        place = chance.randrange(len(content) // BATCH_BYTES) * BATCH_BYTES + chance.randrange(21, BATCH_BYTES)
        content = content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
    else:
        content += bytes(100) if kind == "zeros" else chance.randbytes(chance.randrange(1, 200))
    log.write_bytes(content)


def make_mix(chance: random.Random, directory: Path) -> Mix:
    end = SEGMENTS * BATCHES
    mix = Mix(directory, chance.random() < 0.4, chance.choice([0, 0, end, chance.randrange(end)]))
    bases = range(0, end, BATCHES)
    for base in bases:
        write_segment(directory, base, [batch(o) for o in range(base, base + BATCHES)], index_interval_bytes=0)
        mix.held[base] = list(range(base, base + BATCHES))
    for _ in range(chance.randrange(1, 4)):
        leave_replacement(chance, mix, chance.choice(bases), end)
    for base in chance.sample(bases, chance.choice([0, 0, 1, 2])):
        del mix.held[base]
        if chance.random() < 0.5:
            mix.damaged.append(base)
            spoil(chance, directory / name(base, ".log"), may_end_at_a_batch=True)
        else:
            for suffix in SUFFIXES[: chance.randrange(1, 4)]:
                (directory / name(base, suffix)).rename(directory / name(base, f"{suffix}.deleted"))
    return mix


def leave_replacement(chance: random.Random, mix: Mix, base: int, end: int) -> None:
    """Leave an interrupted replacement of one or two segments with all, some or none of their records."""
    state = chance.choice([".cleaned", ".swap", ".swap", ".swap", ".deleted"])
    offsets = [o for o in range(base, min(base + chance.choice([1, 2]) * BATCHES, end)) if chance.random() < 0.7]
    log = write_segment(mix.directory / "new", base, [batch(o) for o in offsets], index_interval_bytes=0)
    suffixes = [s for s in SUFFIXES if chance.random() < 0.85]
    is_corrupt = bool(offsets) and chance.random() < 0.6
    if is_corrupt:
        spoil(chance, log, may_end_at_a_batch=".timeindex" in suffixes)
    if chance.random() < 0.1 and ".index" in suffixes:
        (log.with_suffix(".index")).write_bytes(chance.randbytes(8 * chance.randrange(1, 5)))
    for suffix in suffixes:
        log.with_suffix(suffix).replace(mix.directory / name(base, suffix + state))
    if ".log" in suffixes and state == ".swap":
        mix.replacements = [found for found in mix.replacements if found[0] != base]
        if offsets and not is_corrupt:
            mix.replacements.append((base, offsets[-1] + 1))


def load(mix: Mix) -> LoadedLog:
    checkpoints = PartitionCheckpoints(log_start=0, recovery_point=mix.recovery_point, clean_shutdown=mix.clean)
    return load_log(
        PARTITION, mix.directory, LogConfig(), checkpoints, Fs(), now_ms=NOW_MS, mode=LoadMode(verify_trusted=mix.clean)
    )


def offsets_in(log: Path) -> Iterator[int]:
    content = log.read_bytes()
    for start in range(0, len(content) - BATCH_BYTES + 1, BATCH_BYTES):
        yield int.from_bytes(content[start : start + 8], "big")


def lost(mix: Mix) -> list[int]:
    """Return the missing offsets of whole logs without a whole replacement."""
    left = {offset for path in mix.directory.glob("*.log") for offset in offsets_in(path)}
    expected = [offset for base, held in mix.held.items() if not mix.is_replaced(base) for offset in held]
    return [offset for offset in expected if offset not in left]


def lost_unreported(mix: Mix, log: LoadedLog) -> list[int]:
    """Return the lost offsets, except those past a log end that the repairs name."""
    report = f"the log ends at offset {log.log_end_offset}"
    is_reported = any(report in str(repair) for repair in log.repairs)
    return [offset for offset in lost(mix) if offset < log.log_end_offset or not is_reported]


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_mix_of_leftovers_loses_what_a_whole_log_held_without_a_word(tmp_path: Path, first: int):
    outcomes = dict.fromkeys(["loaded", "undone", "refused"], 0)
    for seed in range(first, first + 60):
        mix = make_mix(random.Random(seed), tmp_path / str(seed) / "t-0")
        before = read_image(mix.directory)
        try:
            log = load(mix)
        except SedimentError as error:
            assert "Traceback" not in str(error)
            assert lost(mix) == [], f"seed {seed}: {error}"
            if "replacement" in str(error):
                assert read_image(mix.directory) == before
            outcomes["refused"] += 1
            continue
        outcomes["undone" if any("is not whole" in str(repair) for repair in log.repairs) else "loaded"] += 1
        assert lost_unreported(mix, log) == [], f"seed {seed}: {[str(r) for r in log.repairs]}"
        assert not [p for p in mix.directory.iterdir() if p.name.endswith((".swap", ".cleaned"))]
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kept_bytes", [0, 1, BATCH_BYTES, BATCH_BYTES + 30])
def test_a_beginning_of_a_log_that_is_named_swap_replaces_nothing(tmp_path: Path, clean: bool, kept_bytes: int):
    directory = tmp_path / "t-0"
    for base in range(0, 12, BATCHES):
        write_segment(directory, base, [batch(o) for o in range(base, base + BATCHES)], index_interval_bytes=0)
    before = (directory / name(4, ".log")).read_bytes()
    for suffix in SUFFIXES:
        content = (directory / name(4, suffix)).read_bytes()
        (directory / name(4, f"{suffix}.swap")).write_bytes(content[:kept_bytes] if suffix == ".log" else content)
    log = load(Mix(directory, clean, 0))
    assert (directory / name(4, ".log")).read_bytes() == before
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]
    assert (log.log_end_offset, log.damage) == (12, ())
    assert len(list(file_batches((directory / name(4, ".log")).read_bytes()))) == BATCHES
    assert not any("complete replacement" in str(repair) or "was complete" in str(repair) for repair in log.repairs)
