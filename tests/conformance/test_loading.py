"""Random damage: Kafka 4.2.0's loader and Sediment's loader must repair copies of a directory in the same way.

SEDIMENT_CONFORMANCE_LOADS is how many (300), SEDIMENT_CONFORMANCE_SEED the first seed (0).  Left out are logs that ours
refuses, or cuts or reports after a clean stop, as docs/reference/differences.md says, and those that Kafka does not
load at all; with its other differences the rest is compared.  A case that comes out otherwise is made smaller and kept
(see cases.py).
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.layout import MAGIC_PREFIX_BYTES
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.producer_snapshots import encode_snapshot
from tests.conformance.cases import Case, Fails, keep, kept, read_kept, shrunk
from tests.conformance.oracle import KAFKA_VERSION, REFERENCE_VERSION, KafkaFailedError, KafkaOracle, LogState
from tests.corpus import assert_same_log
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.errors import TwinError
from tests.twin.segments import file_batches, list_snapshots
from tests.twin.snapshots import parse_snapshot

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

NOW_MS = START_MS + 500_000
INDEX_BYTES = 10 << 20
PARTITION = TopicPartition("t", 0)
REFUSALS = (
    "checksum",
    "a batch is past the next segment's base offset",
    "the offset of a batch is far above",
    "offsets above the segment's base",
    "interrupted",
    "is above the log end",
)
EPOCHS = ("0\n0\n", "0\n2\n0 0\n3 5000\n", "0\n1\n0 700\n")


# --------------------------------------------------------------------------------------------------------------- damage
def _one(chance: random.Random, directory: Path, pattern: str) -> Path | None:
    found = sorted(directory.glob(pattern))
    return chance.choice(found) if found else None


def _change(pattern: str, change: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, Path], None]:
    def apply(chance: random.Random, directory: Path) -> None:
        path = _one(chance, directory, pattern)
        if path is not None:
            path.write_bytes(change(chance, path.read_bytes()))

    return apply


def _remove(pattern: str, probability: float = 0.0) -> Callable[[random.Random, Path], None]:
    def apply(chance: random.Random, directory: Path) -> None:
        for path in sorted(directory.glob(pattern)) if probability else [_one(chance, directory, pattern)]:
            if path is not None and (not probability or chance.random() < probability):
                path.unlink()

    return apply


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _leave_swap(chance: random.Random, directory: Path) -> None:
    log = _one(chance, directory, "*.log")
    state = chance.choice([".cleaned", ".swap", ".swap", ".deleted"])
    for suffix in (".log", ".index", ".timeindex"):
        source = directory / f"{log.stem}{suffix}" if log else directory
        if source.is_file():
            shutil.copy(source, source.with_name(source.name + state))


def _nothing(_chance: random.Random, _directory: Path) -> None:
    pass


def _orphan_index(_chance: random.Random, directory: Path) -> None:
    (directory / f"{5:020d}.index").write_bytes(b"12345678")


def _stray_snapshot(chance: random.Random, directory: Path) -> None:
    (directory / f"{chance.randrange(2000):020d}.snapshot").write_bytes(encode_snapshot(()))


_Damage: TypeAlias = Callable[[random.Random, Path], None]
_DAMAGE: dict[str, _Damage] = {
    "a flipped bit": _change("*.log", _flip),
    "a cut log": _change("*.log", lambda chance, data: data[: chance.randrange(len(data) + 1)]),
    "garbage after a log": _change("*.log", lambda chance, data: data + chance.randbytes(chance.randrange(1, 400))),
    "zeros after a log": _change("*.log", lambda chance, data: data + bytes(chance.randrange(1, 4000))),
    "no offset index": _remove("*.index"),
    "no time index": _remove("*.timeindex"),
    "no transaction index": _remove("*.txnindex"),
    "no snapshots": _remove("*.snapshot", 0.6),
    "a damaged snapshot": _change("*.snapshot", lambda chance, data: data[:-1] + b"!"),
    "zeros after an index": _change("*.index", lambda chance, data: data + bytes(chance.randrange(1, 100))),
    "a cut time index": _change("*.timeindex", lambda chance, data: data[:-5]),
    "other leader epochs": _change("leader-epoch-checkpoint", lambda chance, data: chance.choice(EPOCHS).encode()),
    "nothing": _nothing,
    "an index without a log": _orphan_index,
    "a stray snapshot": _stray_snapshot,
    "an interrupted swap": _leave_swap,
}
DAMAGE_NAMES, DAMAGE = tuple(_DAMAGE), tuple(_DAMAGE.values())


# ----------------------------------------------------------------------------------------------------------- comparison
@dataclass(frozen=True, slots=True)
class _KafkasLoads:
    """Kafka's loader for the directories of one case."""

    oracle: KafkaOracle
    configs: dict[str, str]
    clean: bool
    recovery_point: int
    log_start: int

    def load(self, directory: Path) -> LogState:
        """Return Kafka's state of `directory`."""
        return self.oracle.load(
            directory,
            now_ms=NOW_MS,
            configs=self.configs,
            clean=self.clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start,
        )

    def first_unstable_offset(self, directory: Path, known: int | None, log_end_offset: int) -> int | None:
        """What Kafka tells for the first unstable offset `known`: the base of the batch that a look-up of it finds.

        That is the log end where no batch is left from there on.  `directory` is a loaded one, and is left as it is.
        """
        if known is None:
            return None
        copy = _copy(directory, directory.parents[1] / "looked-up" / directory.name)
        (batch,) = self.oracle.lookup(
            copy, now_ms=NOW_MS, configs=self.configs, offsets=[known], log_start_offset=self.log_start
        ).batches
        return log_end_offset if batch is None else batch[0]


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def _differences(ours: LoadedLog, kafka: LogState, mine: Path, theirs: Path, loads: _KafkasLoads) -> list[str]:
    found = []
    for name in ("log_start_offset", "log_end_offset", "recovery_point"):
        if getattr(ours, name) != getattr(kafka, name):
            found.append(f"{name} {getattr(ours, name)}, Kafka's {getattr(kafka, name)}")
    unstable, kafkas = ours.first_unstable_offset, kafka.first_unstable_offset
    if unstable != kafkas and loads.first_unstable_offset(theirs, unstable, kafka.log_end_offset) != kafkas:
        found.append(f"first unstable offset {unstable}, Kafka's {kafkas}")
    segments = [(s.base_offset, s.log_bytes, s.offset_index_entries, s.time_index_entries) for s in ours.segments]
    expected = [(s.base_offset, s.log_bytes, s.offset_index_entries, s.time_index_entries) for s in kafka.segments]
    if segments != expected:
        found.append(f"segments {segments}, Kafka's {expected}")
    producers = tuple((key, entry.last_sequence) for key, entry in sorted(ours.producers.entries.items()))
    if producers != kafka.producers:
        found.append(f"producers {producers}, Kafka's {kafka.producers}")
    try:
        assert_same_log(mine, theirs, compressed=False)
    except AssertionError as error:
        found.append(str(error)[:200])
    except TwinError:
        pass  # the twin does not read damaged batches
    found += _snapshot_differences(mine, theirs)
    names = [sorted(path.name for path in side.iterdir() if path.suffix != ".deleted") for side in (mine, theirs)]
    if names[0] != names[1]:
        found.append(f"files {sorted(set(names[0]) ^ set(names[1]))} are only in one of the directories")
    epochs = [(side / "leader-epoch-checkpoint").read_text() for side in (mine, theirs)]
    if epochs[0] != epochs[1]:
        found.append(f"leader epochs {epochs[0]!r}, Kafka's {epochs[1]!r}")
    return found


def _snapshot_differences(mine: Path, theirs: Path) -> list[str]:
    if list_snapshots(mine) != list_snapshots(theirs):
        return [f"snapshots at {list_snapshots(mine)}, Kafka's at {list_snapshots(theirs)}"]
    for offset in list_snapshots(mine):
        ours, kafkas = ((side / f"{offset:020d}.snapshot").read_bytes() for side in (mine, theirs))
        if ours != kafkas and parse_snapshot(ours) != parse_snapshot(kafkas):
            return [f"snapshot {offset} holds other producers"]
    return []


# ------------------------------------------------------------------------- what docs/reference/differences.md speaks of
def _is_known_difference(ours: LoadedLog, clean: bool) -> bool:
    return bool(ours.damage) or (clean and any("cut from" in str(repair) for repair in ours.repairs))


def _is_refused_as_meant(error: SedimentError) -> bool:
    """Return True if docs/reference/differences.md says that ours refuses this log, which Kafka loads."""
    if any(text in str(error) for text in REFUSALS):
        return True
    if not isinstance(error, CorruptBatchError) or error.path is None:
        return False
    named = next(file_batches(Path(error.path).read_bytes(), error.position or 0), None)
    return named is not None and not named[1].is_valid()


def _tear_where_an_offset_goes_back(ours: LoadedLog, damaged: Path) -> int | None:
    """If ours was cut because an offset goes back, tear the batch there; the base offset of its segment, else None."""
    for repair in ours.repairs:
        cut = re.fullmatch(r"cut from \d+ to (\d+) bytes", repair.action)
        if cut and repair.why.startswith("the offset of the batch is not above"):
            for path in (damaged / repair.name, damaged / f"{repair.name}.swap"):
                if path.exists():
                    path.write_bytes(path.read_bytes()[: int(cut[1]) + MAGIC_PREFIX_BYTES])
            return int(Path(repair.name).stem)
    return None


def _not_brought(damaged: Path, suffix: str) -> Iterator[str]:
    """Names of the indexes of a kind that the interrupted replacements in a directory do not bring."""
    for log in damaged.glob("*.log.swap"):
        name = f"{log.name.removesuffix('.log.swap')}{suffix}"
        if not (damaged / f"{name}.swap").exists():
            yield name


def _as_meant(
    ours: LoadedLog, kafka: LogState, damaged: Path, mine: Path, theirs: Path, loads: _KafkasLoads
) -> LogState:
    """Kafka's state, and `theirs`, as they would be if Kafka did as we do where docs/reference/differences.md says so.

    * An offset that goes back is as good as a torn batch, where Kafka empties the segment.
    * Kafka makes an offset index of zeros for a replacement that brings none; without it Kafka rebuilds it.
    * A transaction index that a replacement does not bring is none, where Kafka leaves the old one or empties it.
    """
    base_offset = _tear_where_an_offset_goes_back(ours, damaged)
    if base_offset is not None and kafka.log_end_offset == max(base_offset, loads.log_start):
        _copy(damaged, theirs)
        kafka = loads.load(theirs)
    zeros = [theirs / name for name in _not_brought(damaged, ".index")]
    zeros = [path for path in zeros if path.exists() and path.read_bytes() == bytes(INDEX_BYTES)]
    if zeros:
        for path in zeros:
            path.unlink()
        kafka = loads.load(theirs)
    for name in _not_brought(damaged, ".txnindex"):
        old, left = damaged / name, theirs / name
        is_old = left.exists() and old.exists() and left.read_bytes() in (b"", old.read_bytes())
        if is_old and not (mine / name).exists():
            left.unlink()
    return kafka


def random_load(seed: int) -> Case:
    """Return a random log, the damage done to it, and how it is loaded, as plain JSON."""
    chance = random.Random(seed)
    return {
        "seed": seed,
        "shape": {
            "batches": chance.choice([5, 30, 60]),
            "segment_bytes": chance.choice([600, 2500, 10_000]),
            "interval_bytes": chance.choice([0, 100, 300]),
            "codecs": chance.choice([(0,), (0, 1, 2, 3, 4)]),
            "magics": chance.choice([(2,), (2,), (2,), (0, 1, 2)]),
        },
        "damage": [[chance.randrange(len(DAMAGE)), chance.randrange(1 << 30)] for _ in range(chance.randrange(4))],
        "clean": chance.random() < 0.3,
        "recovery_point": chance.choice([0.0, 0.0, 1.0, chance.random(), 1 + chance.random()]),
        "log_start": chance.choice([0.0, 0.0, 0.0, chance.random(), 1.01]),
    }


def smaller_load(case: Case, fails: Fails) -> Case:
    """With less damage, fewer batches, one codec, one magic, and loaded in the plainest way."""
    case = shrunk(case, fails)
    for fewer in (1, 2, 3, 5, 10, 20, 40):
        candidate = {**case, "shape": {**case["shape"], "batches": fewer}}
        if fewer < case["shape"]["batches"] and fails(candidate):
            case = candidate
            break
    for name, plain in (("codecs", [0]), ("magics", [2])):
        candidate = {**case, "shape": {**case["shape"], name: plain}}
        case = candidate if fails(candidate) else case
    for name in ("recovery_point", "log_start"):
        case = {**case, name: 0.0} if fails({**case, name: 0.0}) else case
    return case


def _load_both(oracle: KafkaOracle, case: Case, scratch: Path) -> tuple[str, list[str]]:
    """(what came of it, differences)."""
    shape = LogShape(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in case["shape"].items()}
    )
    damaged = scratch / "damaged" / "t-0"
    shutil.rmtree(damaged, ignore_errors=True)
    end = write_random_log(damaged, case["seed"], shape)
    for number, seed in case["damage"]:
        DAMAGE[number](random.Random(seed), damaged)
    clean = case["clean"]
    recovery_point, log_start = int(end * case["recovery_point"]), int(end * case["log_start"])
    mine, theirs = (_copy(damaged, scratch / side / "t-0") for side in ("mine", "theirs"))
    configs = {
        "index.interval.bytes": str(shape.interval_bytes),
        "segment.bytes": "1048576",
        "segment.index.bytes": str(INDEX_BYTES),
    }
    loads = _KafkasLoads(oracle, configs, clean, recovery_point, log_start)
    kafka: LogState | None = None
    with suppress(KafkaFailedError):
        kafka = loads.load(theirs)
    try:
        ours = load_log(
            PARTITION,
            mine,
            LogConfig(compaction=CompactionConfig(index_interval_bytes=shape.interval_bytes)),
            PartitionCheckpoints(log_start=log_start, recovery_point=recovery_point, clean_shutdown=clean),
            Fs(),
            now_ms=NOW_MS,
            mode=LoadMode(verify_trusted=clean),
        )
    except SedimentError as error:
        left = {path.name: path.read_bytes() for path in mine.glob("*.log")}
        changed = [path.name for path in damaged.glob("*.log") if left.get(path.name) != path.read_bytes()]
        as_meant = kafka is None or (not changed and _is_refused_as_meant(error))
        return "refused", [] if as_meant else [f"{error}; changed: {changed}"]
    if kafka is None:
        return "refused by Kafka", []
    if _is_known_difference(ours, clean):
        ends = f"log_end_offset {ours.log_end_offset}, Kafka's {kafka.log_end_offset}"
        return "known difference", [ends] if ours.log_end_offset < kafka.log_end_offset else []
    if KAFKA_VERSION != REFERENCE_VERSION:
        _cut_torn_entries(theirs)
    kafka = _as_meant(ours, kafka, damaged, mine, theirs, loads)
    found = _differences(ours, kafka, mine, theirs, loads)
    return ("different" if found else "equal"), found


def _cut_torn_entries(partition: Path) -> None:
    """Cut torn entries off the indexes, as the reference does at a stop; 4.4 does it for the active segment alone."""
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        for path in partition.glob(f"*{suffix}"):
            size_bytes = path.stat().st_size
            os.truncate(path, size_bytes - size_bytes % entry_bytes)


def test_damaged_logs_are_loaded_as_kafka_loads_them(oracle, tmp_path, capsys):
    loads = int(os.environ.get("SEDIMENT_CONFORMANCE_LOADS", "300"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    tally: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    differences = []
    for seed in range(first, first + loads):
        case = random_load(seed)
        outcome, found = _load_both(oracle, case, tmp_path)
        tally[outcome] += 1
        covered.update({DAMAGE_NAMES[number] for number, _ in case["damage"]})
        if found:
            fails = partial(_differs_so, oracle, tmp_path, _kind(found))
            path = keep("loading", str(seed), smaller_load(case, fails), found[0])
            differences += [f"seed {seed}, kept as {path}: {difference}" for difference in found]
    with capsys.disabled():
        print(f"\n{dict(tally)}\ndamage: {dict(sorted(covered.items()))}")
    assert not differences, "\n".join(differences)
    assert tally["equal"] > loads // 2
    assert loads < 300 or set(covered) == set(DAMAGE_NAMES)


def _differs_so(oracle: KafkaOracle, scratch: Path, kind: str, case: Case) -> bool:
    return _kind(_load_both(oracle, case, scratch)[1]) == kind


def _kind(found: list[str]) -> str:
    """What tells one difference from another: its first word."""
    return found[0].split()[0] if found else ""


@pytest.mark.parametrize("path", kept("loading"), ids=lambda path: path.stem)
def test_a_log_that_was_once_loaded_otherwise_is_loaded_as_kafka_loads_it(path, oracle, tmp_path):
    assert _load_both(oracle, read_kept(path), tmp_path)[1] == []
