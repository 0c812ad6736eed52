"""Commands that are interrupted at every step, and the rules for the directory afterwards.

A `CrashScenario` lays out a directory, runs a command in it, and checks the files after a crash or a failed step:

    compact            our start finds each group of each partition old or new, the new ones first; the checkpoint never
                       runs ahead
    compact, rolled    no record lost or invented
    --keep-originals   every replaced file is kept
    --output           the source unchanged; with a manifest the output is complete, without one it is started over
    erase, reencode    our start finds each segment as before or after the run, and the same log end
    expire             every record from the log start on exists
    expire --archive   every record is in the log or in the archive, and in the archive once
    recover            the marker of a clean stop exists only after a finished repair
    restore            every record from the log start on exists, and every removed file is among the originals; after
                       a recovery, the marker of a clean stop is gone before anything that it cut off is back
    vacuum             every original is in a catalogue, and the log directory is unchanged
    all                a second run ends like an undisturbed one, and leaves no temporary file
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_checkpoints
from tests.corpus import load_loading_case
from tests.faults.fs_trace import Tree, contents, read_tree, write_tree
from tests.faults.inline_spark import inline_spark
from tests.jobs.expiring.expired_logs import make_log
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, write_checkpoint
from tests.logs import START_MS, LogShape, write_random_log
from tests.segments import NOW_MS
from tests.twin.batches import crc32c_of
from tests.twin.segments import file_batches, list_segments

LOGS = "logs"
ELSEWHERE = "elsewhere"
SEVERAL = "compact, several partitions"
TEMPORARY = (".part", ".cleaned", ".swap", ".deleted")
RUN_TOKEN = ".sediment-run"

_INTERVAL_BYTES = 300
_ORIGINAL = re.compile(rf"{ELSEWHERE}/[0-9a-f]{{12}}/(.+)")
_SIZE = struct.Struct(">qi")
_OVERHEAD_BYTES, _CRC_POSITION, _CRC_FROM = 12, 17, 21


# --------------------------------------------------------------------------------------------------------------- values
def readable_batches(directory: Path) -> dict[int, bytes]:
    """Return the whole batches of magic 2 with a correct checksum, by base offset, up to the first other one."""
    found = {}
    for path in sorted(directory.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position + _CRC_FROM <= len(data):
            base_offset, size_bytes = _SIZE.unpack_from(data, position)
            batch = data[position : position + _OVERHEAD_BYTES + size_bytes]
            stored = int.from_bytes(batch[_CRC_POSITION:_CRC_FROM], "big")
            if len(batch) < max(_OVERHEAD_BYTES + size_bytes, _CRC_FROM) or crc32c_of(batch[_CRC_FROM:]) != stored:
                break
            found[base_offset] = batch
            position += len(batch)
    return found


def records_of(directory: Path) -> dict[int, object]:
    """Return the records by offset."""
    return {
        record.offset: record
        for segment in list_segments(directory)
        for _, batch in segment.batches()
        for record in batch.records()
    }


def leftovers(tree: Tree) -> list[str]:
    """Return the names of files that only a running command may have."""
    return [name for name in contents(tree) if name.endswith(TEMPORARY) or Path(name).name == RUN_TOKEN]


def segment_files(directory: Path) -> dict[str, bytes]:
    """Return logs and indexes below the active segment, whose indexes a broker resizes."""
    active = max(path.name for path in directory.glob("*.log"))
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name.endswith((".log", "index")) and path.name < active.removesuffix(".log")
    }


def _is_spare(name: str) -> bool:
    """Return True for a half-written small file, which a broker ignores and the next write replaces."""
    return name.endswith(".tmp")


def _partition(directory: Path) -> TopicPartition:
    return parse_partition_directory(directory.name)[0]


# ------------------------------------------------------------------------------------------------------------- scenario
@dataclass(slots=True)
class CrashScenario:
    """A command in a directory; after `prepare`, `before` and `after` are the trees of an undisturbed run.

    `arguments` follow the command's name.  An at sign in them stands for `root`.  `settle` gives restored trees the
    links and inodes that they had.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    lay_out: Callable[[Path], None]
    check: Callable[[CrashScenario, Tree], None]
    settle: Callable[[Path], None] | None = None
    root: Path = Path()
    before: Tree = None  # type: ignore[assignment]
    after: Tree = None  # type: ignore[assignment]
    outcome: Outcome = None  # type: ignore[assignment]

    def prepare(self, root: Path) -> None:
        """Lay out the directory below `root`, run the command once, and lay it out again."""
        self.root = root
        self.lay_out(root)
        self.before = read_tree(root)
        self.outcome = self.run()
        self.after = read_tree(root)
        self.restore(self.before)

    def run(self, *, speculates: bool = False) -> Outcome:
        """Run the command in this process; with `speculates` each of its tasks runs twice."""
        arguments = tuple(argument.replace("@", str(self.root)) for argument in self.arguments)
        where = (self.root / ELSEWHERE,) if self.command == "vacuum" else (self.root / LOGS, "--quiet")
        with inline_spark(speculates=speculates):
            return sediment(self.command, *where, "--json", *arguments)

    def restore(self, tree: Tree) -> None:
        write_tree(self.root, tree)
        if self.settle is not None:
            self.settle(self.root)

    @property
    def interval_bytes(self) -> int:
        """The topic's `index.interval.bytes`."""
        return _INTERVAL_BYTES if "compact" in self.name or self.command in ("erase", "reencode") else 4096

    @property
    def is_trusted_more_by_us(self) -> bool:
        """True if Kafka would keep a torn last batch after a clean stop, which our start cuts off."""
        return "torn-tail-clean" in self.name

    @property
    def log_dir(self) -> Path:
        return self.root / LOGS

    def partitions(self) -> list[Path]:
        """Return the partition directories that were laid out."""
        names = {name.split("/")[1] for name in self.before if name.startswith(f"{LOGS}/") and name.count("/") > 1}
        return [self.log_dir / name for name in sorted(names)]

    def of(self, tree: Tree, directory: Path) -> dict[str, bytes]:
        """Return the files of a directory in a tree."""
        start = f"{directory.relative_to(self.root)}/"
        return {
            name.removeprefix(start): data
            for name, data in contents(tree).items()
            if name.startswith(start) and "/" not in name.removeprefix(start) and not _is_spare(name)
        }

    def checkpoints(self, directory: Path) -> PartitionCheckpoints:
        """Return the checkpoints of a partition as they are now."""
        return read_checkpoints(directory.parent, Fs()).of(_partition(directory))

    def load(self, directory: Path) -> LoadedLog:
        """Open a partition with our loader."""
        return load_log(
            _partition(directory),
            directory,
            LogConfig(compaction=CompactionConfig(index_interval_bytes=self.interval_bytes)),
            self.checkpoints(directory),
            Fs(),
            now_ms=START_MS,
        )

    def opens(self, directory: Path) -> bool:
        """Open a partition with our loader, and return False if it refuses that and changes nothing.

        Only the restore of a cut log may be refused: to a start, its new log looks like one that lost data.
        """
        found = contents(read_tree(directory))
        try:
            self.load(directory)
        except CorruptDataError:
            assert any(name.endswith(".log.swap") for name in found)
            assert contents(read_tree(directory)) == found
            return False
        return True

    def assert_repeats(self) -> Outcome:
        """Run the command again and assert the exit status of an undisturbed run and no leftovers."""
        outcome = self.run()
        assert outcome.status == self.outcome.status, outcome.stderr + outcome.stdout
        assert leftovers(read_tree(self.root)) == []
        return outcome


def files_of(scenario: CrashScenario, tree: Tree) -> dict[str, bytes]:
    """Return the files that are equal in every run: all except the manifest, catalogues, evidence and archive.

    The names of originals are without the id of their run.
    """
    is_archived = "archived" in scenario.name
    return {
        _ORIGINAL.sub(rf"{ELSEWHERE}/\1", name): data
        for name, data in contents(tree).items()
        if not name.endswith("manifest.json")
        and not name.startswith(f"{ELSEWHERE}/catalogue-")
        and not name.startswith("evidence.")
        and not (is_archived and name.startswith(f"{ELSEWHERE}/"))
    }


# -------------------------------------------------------------------------------------------------------------- compact
def _lay_out_for_compact(root: Path) -> None:
    write_random_log(root / LOGS / "t-0", 5, LogShape(batches=30, segment_bytes=700, interval_bytes=_INTERVAL_BYTES))
    (root / LOGS / CLEAN_SHUTDOWN_FILE).touch()


def _lay_out_several(root: Path) -> None:
    for number in range(2):
        shape = LogShape(batches=12, segment_bytes=700, interval_bytes=_INTERVAL_BYTES)
        write_random_log(root / LOGS / f"t-{number}", 5 + number, shape)
    (root / LOGS / CLEAN_SHUTDOWN_FILE).touch()


_COMPACT = (
    "--force",
    f"--now-ms={START_MS + 1_000_000}",
    "--set=cleanup.policy=compact",
    "--set=segment.bytes=1800",
    f"--set=index.interval.bytes={_INTERVAL_BYTES}",
)


def committed_groups(scenario: CrashScenario, directory: Path) -> int:
    """Return the number of new groups after a start; each must be old or new, and the new ones first."""
    old, new = (_segments(scenario.of(tree, directory)) for tree in (scenario.before, scenario.after))
    found = segment_files(directory)
    # A group keeps the base offset of its first segment.
    firsts = sorted({int(name[:20]) for name in old} & {int(name[:20]) for name in new})
    states = []
    for index, first in enumerate(firsts):
        below = {name: data for name, data in new.items() if int(name[:20]) < first}
        above = {name: data for name, data in old.items() if first <= int(name[:20]) < firsts[-1]}
        survivors = _survivors(old, below, first) if index else {}
        states.append((below | above).items() <= found.items() <= (below | above | survivors).items())
    assert any(states), f"no prefix of the groups is new: {sorted(found)}"
    return states.index(True)


def _survivors(old: Mapping[str, bytes], below: Mapping[str, bytes], first: int) -> dict[str, bytes]:
    """Return the sources of the last new group past its end, which Kafka's rule by numbers keeps for the next run."""
    last = max(name for name in below if name.endswith(".log"))
    end = max((batch.last_offset for _, batch in file_batches(below[last])), default=int(last[:20]) - 1)
    return {name: data for name, data in old.items() if end < int(name[:20]) < first and name not in below}


def _segments(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith((".log", "index"))}


def _check_records(scenario: CrashScenario, tree: Tree) -> None:
    """Check that no surviving record is lost, none is invented, and the next run completes the cleaning."""
    directories = scenario.partitions()
    scenario.restore(scenario.after)
    survivors = {directory: records_of(directory) for directory in directories}
    scenario.restore(scenario.before)
    all_records = {directory: records_of(directory) for directory in directories}
    scenario.restore(tree)
    for directory in directories:
        log = scenario.load(directory)
        assert not log.damage
        assert log.log_end_offset == max(all_records[directory]) + 1
        found = records_of(directory)
        assert survivors[directory].items() <= found.items() <= all_records[directory].items()
    scenario.restore(tree)
    scenario.assert_repeats()
    assert {directory: records_of(directory) for directory in directories} == survivors
    assert read_checkpoint(scenario.log_dir / "cleaner-offset-checkpoint") == _checkpoint(scenario.after)


def _checkpoint(tree: Tree) -> dict[str, int]:
    lines = tree[f"{LOGS}/cleaner-offset-checkpoint"][0].decode().splitlines()[2:]
    return {"-".join(line.split()[:2]): int(line.split()[2]) for line in lines}


def _check_groups(scenario: CrashScenario, tree: Tree) -> None:
    scenario.restore(scenario.after)
    all_groups = {directory: committed_groups(scenario, directory) for directory in scenario.partitions()}
    scenario.restore(tree)
    path = scenario.log_dir / "cleaner-offset-checkpoint"
    in_checkpoint = read_checkpoint(path) if path.exists() else {}
    for directory, groups in all_groups.items():
        scenario.load(directory)
        committed = committed_groups(scenario, directory)
        assert directory.name not in in_checkpoint or committed == groups, "the checkpoint runs ahead"
    _check_records(scenario, tree)


def _originals_of(scenario: CrashScenario, tree: Tree, directory: Path) -> list[dict[str, bytes]]:
    """Return the originals of a partition that each run has kept."""
    names = {name.split("/")[1] for name in tree if name.startswith(f"{ELSEWHERE}/") and name.count("/") > 1}
    return [scenario.of(tree, scenario.root / ELSEWHERE / name / directory.name) for name in sorted(names)]


def _check_kept(scenario: CrashScenario, tree: Tree) -> None:
    """Check the groups, and that every log is in its place or, with its content, among the originals."""
    _check_groups(scenario, tree)
    _check_logs_kept(scenario, tree)


def _check_logs_kept(scenario: CrashScenario, tree: Tree) -> None:
    """Check that every log is in its place or among the originals, in a state after a crash and in the one now."""
    (directory,) = scenario.partitions()
    for state in (tree, read_tree(scenario.root)):
        live = scenario.of(state, directory)
        kept = _originals_of(scenario, state, directory)
        for name, data in scenario.of(scenario.before, directory).items():
            if name.endswith(".log"):
                there = [live.get(name), live.get(f"{name}.deleted"), *(place.get(name) for place in kept)]
                assert data in there, f"{name} is lost"


def _check_output(scenario: CrashScenario, tree: Tree) -> None:
    manifest = f"{ELSEWHERE}/sediment-manifest.json"

    def source(state: Tree) -> dict[str, bytes]:
        return {name: data for name, data in contents(state).items() if name.startswith(f"{LOGS}/")}

    def output(state: Tree) -> dict[str, bytes]:
        found = {name: data for name, data in contents(state).items() if name.startswith(f"{ELSEWHERE}/")}
        return {name: data for name, data in found.items() if name != manifest}

    assert source(tree) == source(scenario.before)
    if manifest in tree:
        listed = json.loads(tree[manifest][0])["files"]
        for file in listed:
            data, _ = tree[f"{ELSEWHERE}/{file['name']}"]
            assert hashlib.sha256(data).hexdigest() == file["sha256"], f"{file['name']} is listed and not complete"
        return
    scenario.restore(tree)
    scenario.assert_repeats()
    again = read_tree(scenario.root)
    assert output(again) == output(scenario.after)
    assert manifest in again


# ---------------------------------------------------------------------------------------------------- erase, reencode
def _lay_out_for_erase(root: Path) -> None:
    _lay_out_for_compact(root)
    (root / "keys").write_text("key-0\nkey-1\nkey-2\n")


_ERASE = (
    "--yes",
    "--keys-file=@/keys",
    f"--now-ms={START_MS + 1_000_000}",
    "--set=cleanup.policy=delete",
    f"--set=index.interval.bytes={_INTERVAL_BYTES}",
)


_EVIDENCE = ("--evidence=@/evidence.json", "--secret-file=@/secret", "--signing-key=@/key.pem")


def _lay_out_for_evidence(root: Path) -> None:
    from tests.jobs.erasing.evidence_keys import make_keys

    _lay_out_for_erase(root)
    (root / "secret").write_bytes(b"0123456789abcdef")
    make_keys(root, "key")


_ENCODING = ("--codec=zstd", "--batch-bytes=64k")
_REENCODE = (
    *_ENCODING,
    f"--now-ms={START_MS + 1_000_000}",
    f"--set=index.interval.bytes={_INTERVAL_BYTES}",
)


def _check_rewritten(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    old, new = (scenario.of(state, directory) for state in (scenario.before, scenario.after))
    assert any(old[name] != new[name] for name in old if name.endswith(".log"))
    scenario.restore(scenario.before)
    log_end_offset = scenario.load(directory).log_end_offset
    scenario.restore(tree)
    log = scenario.load(directory)
    assert not log.damage
    assert log.log_end_offset == log_end_offset
    found = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    assert found.keys() == {name for name in old if name.endswith(".log")}
    assert all(data in (old[name], new[name]) for name, data in found.items())
    scenario.restore(tree)
    scenario.assert_repeats()
    assert _segments(scenario.of(read_tree(scenario.root), directory)) == _segments(new)


def _check_rewritten_and_kept(scenario: CrashScenario, tree: Tree) -> None:
    _check_rewritten(scenario, tree)
    _check_logs_kept(scenario, tree)


def _check_rewritten_with_evidence(scenario: CrashScenario, tree: Tree) -> None:
    """Check that complete evidence exists only after the last change, and that the next run writes both its files."""
    if "evidence.json" in tree:
        (directory,) = scenario.partitions()
        is_erased = _segments(scenario.of(tree, directory)) == _segments(scenario.of(scenario.after, directory))
        document = json.loads(base64.b64decode(json.loads(tree["evidence.json"][0])["payload"]))
        assert is_erased or not document["complete"], "the evidence is ahead of the segments"
    _check_rewritten(scenario, tree)
    again = read_tree(scenario.root)
    assert {"evidence.json", "evidence.html"} <= again.keys()


# --------------------------------------------------------------------------------------------------------------- expire
def _lay_out_for_expire(root: Path) -> None:
    directory = make_log(root / LOGS, epochs="0\n3\n0 0\n1 7\n2 12\n")
    (root / LOGS / "log-start-offset-checkpoint").write_text("0\n1\nother 3 77\n")
    (directory / "00000000000000000015.snapshot").unlink()


def _check_expired(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    scenario.restore(scenario.before)
    all_records = records_of(directory)
    scenario.restore(tree)
    log = scenario.load(directory)
    found = records_of(directory)
    assert log.log_end_offset == max(all_records) + 1
    assert log.log_start_offset <= scenario.outcome.report["partitions"][0]["log_start_offset"]
    kept = {offset: record for offset, record in all_records.items() if offset >= log.log_start_offset}
    assert {offset: found[offset] for offset in found if offset >= log.log_start_offset} == kept
    scenario.restore(tree)
    scenario.run()
    assert leftovers(read_tree(scenario.root)) == []
    for place in (scenario.log_dir, directory):
        assert scenario.of(read_tree(scenario.root), place) == scenario.of(scenario.after, place)


def _check_expired_and_kept(scenario: CrashScenario, tree: Tree) -> None:
    """Check that every file of a segment is in its place or, with its content, an original in a catalogue.

    A start between two runs may rebuild an index, so that only logs are compared after it.
    """
    _check_expired(scenario, tree)
    (directory,) = scenario.partitions()
    suffixes = (".log", "index", ".snapshot")
    for state, compared in ((tree, suffixes), (read_tree(scenario.root), ".log")):
        live = scenario.of(state, directory)
        links = _originals_of(scenario, state, directory)
        listed = {
            file["name"]
            for name, data in scenario.of(state, scenario.root / ELSEWHERE).items()
            if name.startswith("catalogue-")
            for partition in json.loads(data)["partitions"]
            for file in partition["files"]
        }
        for name, data in scenario.of(scenario.before, directory).items():
            if name.endswith(compared) and live.get(name) != data:
                assert data in [kept.get(name) for kept in links], f"{name} is lost"
                assert name in listed, f"{name} is in no catalogue"


def archived_offsets(scenario: CrashScenario) -> list[int]:
    """Return the offsets of all rows of the archive."""
    from deltalake import DeltaTable

    archive = scenario.root / ELSEWHERE
    if not DeltaTable.is_deltatable(str(archive)):
        return []
    return sorted(DeltaTable(archive).to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())


def _without_torn_commit(scenario: CrashScenario, offsets: list[int]) -> None:
    """Check that a torn commit is named and nothing was deleted for it, then remove it as advised."""
    commits = sorted((scenario.root / ELSEWHERE / "_delta_log").glob("*.json"))
    if not commits or commits[-1].read_bytes().endswith(b"}"):
        return
    (directory,) = scenario.partitions()
    assert set(records_of(directory)) == set(offsets)
    outcome = scenario.run()
    assert outcome.status == 2
    assert "remove this file and run again" in outcome.stderr and commits[-1].name in outcome.stderr
    commits[-1].unlink()


def _check_archived(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    scenario.restore(scenario.before)
    offsets = sorted(records_of(directory))
    scenario.restore(scenario.after)
    kept = sorted(records_of(directory))
    scenario.restore(tree)
    _without_torn_commit(scenario, offsets)
    assert set(records_of(directory)) | set(archived_offsets(scenario)) == set(offsets)
    _check_expired(scenario, read_tree(scenario.root))
    assert archived_offsets(scenario) == sorted(set(offsets) - set(kept))


# -------------------------------------------------------------------------------------------------------------- recover
def _lay_out_for_recover(name: str) -> Callable[[Path], None]:
    def lay_out(root: Path) -> None:
        case = load_loading_case(name, root.with_name(f"{root.name}-case"))
        log_dir = root / LOGS
        write_tree(log_dir / case.partition, read_tree(case.before))
        if case.clean:
            (log_dir / CLEAN_SHUTDOWN_FILE).touch()
        for file, offset in (
            ("recovery-point-offset-checkpoint", case.recovery_point),
            ("log-start-offset-checkpoint", case.log_start_offset),
        ):
            if offset is not None:
                write_checkpoint(log_dir / file, {case.partition: offset})

    return lay_out


def _check_recovered(scenario: CrashScenario, tree: Tree) -> None:
    marker = f"{LOGS}/{CLEAN_SHUTDOWN_FILE}"
    if marker in tree and marker not in scenario.before:
        assert _settled(tree) == _settled(scenario.after), "marked as clean too early"
    scenario.restore(tree)
    outcome = scenario.run()
    # Once the cut is done, a later run finds no loss any more, and exits with 0.
    assert outcome.status in (0, scenario.outcome.status), outcome.stderr + outcome.stdout
    again, expected = _settled(read_tree(scenario.root)), _settled(scenario.after)
    if "missing-snapshots-clean" in scenario.name:
        # The next start goes on from the empty snapshots, as a broker does; they do not count as an upgrade.
        assert again.keys() == expected.keys()
    else:
        assert again == expected
    assert [name for name in again if name.endswith(TEMPORARY)] == []


def _settled(tree: Tree) -> dict[str, bytes]:
    """Return the files, except those that the next start removes and half-written ones beside partitions.

    Files that each attempt keeps before it cuts a log off are left out, too: a killed attempt leaves its own.
    """
    return {
        name: data
        for name, data in contents(tree).items()
        if not name.startswith(f"{LOGS}-originals/")
        and not name.endswith(".deleted")
        and not (_is_spare(name) and name.count("/") == 1)
    }


# --------------------------------------------------------------------------------------------------- restore and vacuum
def _lay_out_expired(root: Path) -> None:
    """Lay out a log whose segments were all expired, with its originals."""
    _lay_out_for_expire(root)
    _keep_originals(root, "expire", "--broker-defaults", "--set=retention.bytes=0", "--set=retention.ms=-1")


def _lay_out_compacted(root: Path) -> None:
    """Lay out a compacted log, with its originals."""
    _lay_out_for_compact(root)
    _keep_originals(root, "compact", *_COMPACT)


def _lay_out_erased(root: Path) -> None:
    """Lay out a log of which records were erased, with its originals."""
    _lay_out_for_erase(root)
    _keep_originals(root, "erase", *(argument.replace("@", str(root)) for argument in _ERASE))


def _lay_out_reencoded(root: Path) -> None:
    """Lay out a re-encoded log, with its originals."""
    _lay_out_for_compact(root)
    _keep_originals(root, "reencode", *_REENCODE)


def _lay_out_two_runs(root: Path) -> None:
    """Lay out a log after an erasure and a re-encoding, with the originals of both."""
    _lay_out_erased(root)
    _keep_originals(root, "reencode", *_REENCODE)


def _lay_out_recovered(name: str) -> Callable[[Path], None]:
    """Lay out a log that was recovered, with what the recovery cut off."""

    def lay_out(root: Path) -> None:
        _lay_out_for_recover(name)(root)
        _keep_originals(root, "recover", f"--now-ms={NOW_MS}")

    return lay_out


def _lay_out_recovered_in_the_middle(root: Path) -> None:
    """Lay out a log of which a recovery cut a closed segment, and removed the segment after it."""
    log = make_log(root / LOGS) / f"{5:020d}.log"
    os.truncate(log, log.stat().st_size - 10)
    (root / LOGS / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    _keep_originals(root, "recover", f"--now-ms={NOW_MS}")


def _keep_originals(root: Path, command: str, *arguments: str) -> None:
    with inline_spark():
        where = (root / LOGS, f"--keep-originals={root / ELSEWHERE}")
        outcome = sediment(command, *where, "--json", "--quiet", *arguments)
    # `recover` exits with 1 where a log has lost records, and repairs it all the same.
    assert outcome.status == 0 or (command == "recover" and outcome.status == 1), outcome.stderr


def relink(root: Path) -> None:
    """Make equal files hard links of originals again, and give catalogues the present inodes.

    A tree holds contents and times, but neither links nor inodes.
    """
    found = [(path, json.loads(path.read_text())) for path in sorted((root / ELSEWHERE).glob("catalogue-*.json"))]
    entries = [(root / ELSEWHERE / data["run_id"], entry) for _, data in found for entry in data["partitions"]]
    for folder, entry in entries:
        for file in (*entry["files"], *entry["unchanged"]):
            _link_equal(_places(root, folder, entry, file))
    for folder, entry in entries:
        listed = folder / entry["partition"] / "new-files.json"
        new = json.loads(listed.read_text()) if listed.exists() else []
        for file in (*entry["files"], *entry["unchanged"], *(entry["new_files"] or ()), *new):
            for path in _places(root, folder, entry, file):
                if (path.stat().st_size, path.stat().st_mtime_ns) == (file["size_bytes"], file["mtime_ns"]):
                    file["inode"] = path.stat().st_ino
                    break
        if listed.exists():
            _rewrite(listed, new)
    for path, data in found:
        _rewrite(path, data)


def _places(root: Path, folder: Path, entry: Mapping[str, Any], file: Mapping[str, Any]) -> list[Path]:
    """Return the paths of a file of a catalogue: among the originals, and in the log under any suffix."""
    kept = folder / entry["partition"] / file["name"]
    return [path for path in (kept, *sorted(_live(root, entry).glob(f"{file['name']}*"))) if path.exists()]


def _link_equal(paths: Sequence[Path]) -> None:
    """Make files of equal content and time links of the first of them."""
    known: dict[tuple[bytes, int], Path] = {}
    for path in paths:
        first = known.setdefault(_state(path), path)
        if first != path:
            path.unlink()
            os.link(first, path)


def _live(root: Path, entry: Mapping[str, Any]) -> Path:
    return root / LOGS / str(entry["partition"])


def _state(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mtime_ns


def _rewrite(path: Path, data: object) -> None:
    times = path.stat().st_mtime_ns
    path.write_text(json.dumps(data))
    os.utime(path, ns=(times, times))


def _check_restored(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    scenario.restore(scenario.after)
    restored = records_of(directory)
    scenario.restore(scenario.before)
    left = records_of(directory)
    scenario.restore(tree)
    log = scenario.load(directory)
    found = records_of(directory)
    assert log.log_end_offset == max(restored) + 1
    assert left.items() <= found.items() <= restored.items()
    scenario.restore(tree)
    _check_kept_files(scenario, tree, directory)
    scenario.assert_repeats()
    again, after = (scenario.of(state, directory) for state in (read_tree(scenario.root), scenario.after))
    # A start that completes a replacement removes producer snapshots in its range, as a broker's does.
    assert _segments(again) == _segments(after)
    assert again.items() <= after.items()
    for path in scenario.log_dir.glob("*-offset-checkpoint"):
        assert _is_spare(path.name) or path.read_bytes() == scenario.after[f"{LOGS}/{path.name}"][0]


def _check_rewrite_undone(scenario: CrashScenario, tree: Tree) -> None:
    """Check that each segment is old or new, that every log is kept, and that the same restore ends as undisturbed."""
    (directory,) = scenario.partitions()
    old, new = (scenario.of(state, directory) for state in (scenario.before, scenario.after))
    scenario.restore(tree)
    assert not scenario.load(directory).damage
    found = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    assert found.keys() == {name for name in old if name.endswith(".log")}
    assert all(data in (old[name], new[name]) for name, data in found.items())
    scenario.restore(tree)
    _check_kept_files(scenario, tree, directory)
    scenario.assert_repeats()
    assert _segments(scenario.of(read_tree(scenario.root), directory)) == _segments(new)


def _check_recovery_undone(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    if f"{LOGS}/{CLEAN_SHUTDOWN_FILE}" in tree:
        assert _segments(scenario.of(tree, directory)) == _segments(scenario.of(scenario.before, directory))
    scenario.restore(scenario.before)
    left = readable_batches(directory)
    scenario.restore(tree)
    if scenario.opens(directory):
        assert left.items() <= readable_batches(directory).items()
    scenario.restore(tree)
    _check_kept_files(scenario, tree, directory)
    scenario.assert_repeats()
    again = read_tree(scenario.root)
    assert _segments(scenario.of(again, directory)) == _segments(scenario.of(scenario.after, directory))
    assert f"{LOGS}/{CLEAN_SHUTDOWN_FILE}" not in again


def _check_kept_files(scenario: CrashScenario, tree: Tree, directory: Path) -> None:
    """Check that every log is in its place or, with its content, among the originals."""
    live, kept = scenario.of(tree, directory), _originals_of(scenario, tree, directory)
    for name, data in scenario.of(scenario.before, directory).items():
        if name.endswith(".log"):
            there = [live.get(f"{name}{suffix}") for suffix in ("", ".deleted", ".swap")]
            assert data in [*there, *(files.get(name) for files in kept)], f"{name} is lost"


def _check_vacuumed(scenario: CrashScenario, tree: Tree) -> None:
    (directory,) = scenario.partitions()
    assert scenario.of(tree, directory) == scenario.of(scenario.before, directory)
    assert scenario.of(tree, scenario.log_dir) == scenario.of(scenario.before, scenario.log_dir)
    originals = [name for name in contents(tree) if name.startswith(f"{ELSEWHERE}/") and name.count("/") > 1]
    listed = any(name.startswith(f"{ELSEWHERE}/catalogue-") for name in tree)
    assert listed or not originals, "originals are left without a catalogue"
    scenario.restore(tree)
    scenario.assert_repeats()
    assert contents(read_tree(scenario.root)) == contents(scenario.after)


_RECOVERED = (
    "flipped-middle-unclean",
    "garbage-tail-unclean",
    "leftover-cleaned",
    "leftover-deleted",
    "leftover-swap",
    "leftover-swap-clean",
    "log-start-in-middle",
    "missing-index-clean",
    "missing-snapshots-clean",
    "missing-snapshots-unclean",
    "missing-timeindex-clean",
    "missing-txnindex-unclean",
    "odd-index-clean",
    "orphan-index",
    "torn-tail-clean",
    "torn-tail-unclean",
    "unclean-from-recovery-point",
    "unclean-untouched",
    "zero-tail-unclean",
)


# ------------------------------------------------------------------------------------------------------------ the table
def crash_scenarios() -> Mapping[str, CrashScenario]:
    """Return every scenario by its name, not prepared yet."""
    table = [
        CrashScenario(
            "compact, whole", "compact", (*_COMPACT, "--strategy=whole"), _lay_out_for_compact, _check_groups
        ),
        CrashScenario(
            "compact, split", "compact", (*_COMPACT, "--strategy=split"), _lay_out_for_compact, _check_groups
        ),
        CrashScenario(SEVERAL, "compact", _COMPACT, _lay_out_several, _check_groups),
        CrashScenario("compact, re-encoded", "compact", (*_COMPACT, *_ENCODING), _lay_out_for_compact, _check_groups),
        CrashScenario("compact, rolled", "compact", (*_COMPACT, "--roll-active"), _lay_out_for_compact, _check_records),
        CrashScenario(
            "compact, originals kept",
            "compact",
            (*_COMPACT, f"--keep-originals=@/{ELSEWHERE}"),
            _lay_out_for_compact,
            _check_kept,
        ),
        CrashScenario(
            "compact, elsewhere",
            "compact",
            (*_COMPACT, f"--output=@/{ELSEWHERE}"),
            _lay_out_for_compact,
            _check_output,
        ),
        CrashScenario("erase", "erase", _ERASE, _lay_out_for_erase, _check_rewritten),
        CrashScenario(
            "erase, originals kept",
            "erase",
            (*_ERASE, f"--keep-originals=@/{ELSEWHERE}"),
            _lay_out_for_erase,
            _check_rewritten_and_kept,
        ),
        CrashScenario(
            "erase, elsewhere", "erase", (*_ERASE, f"--output=@/{ELSEWHERE}"), _lay_out_for_erase, _check_output
        ),
        CrashScenario(
            "erase, evidence", "erase", (*_ERASE, *_EVIDENCE), _lay_out_for_evidence, _check_rewritten_with_evidence
        ),
        CrashScenario("reencode", "reencode", _REENCODE, _lay_out_for_compact, _check_rewritten),
        CrashScenario(
            "reencode, originals kept",
            "reencode",
            (*_REENCODE, f"--keep-originals=@/{ELSEWHERE}"),
            _lay_out_for_compact,
            _check_rewritten_and_kept,
        ),
        CrashScenario(
            "reencode, elsewhere",
            "reencode",
            (*_REENCODE, f"--output=@/{ELSEWHERE}"),
            _lay_out_for_compact,
            _check_output,
        ),
        CrashScenario(
            "expire, some segments",
            "expire",
            ("--broker-defaults", "--set=retention.bytes=360", "--set=retention.ms=-1", f"--now-ms={NOW_MS}"),
            _lay_out_for_expire,
            _check_expired,
        ),
        CrashScenario(
            "expire, every segment",
            "expire",
            ("--broker-defaults", "--set=retention.bytes=0", "--set=retention.ms=-1", f"--now-ms={NOW_MS}"),
            _lay_out_for_expire,
            _check_expired,
        ),
        CrashScenario(
            "expire, originals kept",
            "expire",
            (
                "--broker-defaults",
                "--set=retention.bytes=0",
                "--set=retention.ms=-1",
                f"--now-ms={NOW_MS}",
                f"--keep-originals=@/{ELSEWHERE}",
            ),
            _lay_out_for_expire,
            _check_expired_and_kept,
        ),
        CrashScenario(
            "expire, archived",
            "expire",
            (
                "--broker-defaults",
                "--set=retention.bytes=360",
                "--set=retention.ms=-1",
                f"--now-ms={NOW_MS}",
                f"--archive=@/{ELSEWHERE}",
            ),
            _lay_out_for_expire,
            _check_archived,
        ),
        CrashScenario(
            "restore, expired",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_expired,
            _check_restored,
            settle=relink,
        ),
        CrashScenario(
            "restore, compacted",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_compacted,
            _check_restored,
            settle=relink,
        ),
        CrashScenario(
            "restore, erased",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--undo-erasure", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_erased,
            _check_rewrite_undone,
            settle=relink,
        ),
        CrashScenario(
            "restore, reencoded",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_reencoded,
            _check_rewrite_undone,
            settle=relink,
        ),
        CrashScenario(
            "restore, recovered",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_recovered("flipped-middle-unclean"),
            _check_recovery_undone,
            settle=relink,
        ),
        CrashScenario(
            "restore, torn end of the active segment",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_recovered("torn-tail-unclean"),
            _check_recovery_undone,
            settle=relink,
        ),
        CrashScenario(
            "restore, torn end of a closed segment",
            "restore",
            (f"--from=@/{ELSEWHERE}", "--as-of=0", "--yes", f"--now-ms={NOW_MS}"),
            _lay_out_recovered_in_the_middle,
            _check_recovery_undone,
            settle=relink,
        ),
        CrashScenario(
            "vacuum, elsewhere",
            "vacuum",
            ("--older-than=0s", "--force", "--yes"),
            _lay_out_expired,
            _check_vacuumed,
            settle=relink,
        ),
        CrashScenario(
            "vacuum, elsewhere, two runs",
            "vacuum",
            ("--older-than=0s", "--force", "--yes"),
            _lay_out_two_runs,
            _check_vacuumed,
            settle=relink,
        ),
        *(
            CrashScenario(
                f"recover, {name}", "recover", (f"--now-ms={NOW_MS}",), _lay_out_for_recover(name), _check_recovered
            )
            for name in _RECOVERED
        ),
    ]
    return {scenario.name: scenario for scenario in table}
