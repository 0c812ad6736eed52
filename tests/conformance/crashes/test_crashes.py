"""Kafka's loader on every state that an interrupted swap can leave, and Kafka's log manager against Sediment's lock."""

from pathlib import Path

import pytest

from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.swap import commit
from tests.conformance.oracle import KafkaFailedError, KafkaOracle
from tests.faults.faulty_fs import FaultyFs, Image, Kill, Killed, read_image, write_image
from tests.faults.swap_scenario import Scenario, full_scenario, prepare, survivor_scenario
from tests.segments import NOW_MS

COMPACT = {"cleanup.policy": "compact"}
LOG_END = 42
ACTIVE = f"{40:020d}"


def crashes(directory: Path, given: Scenario) -> list[Image]:
    """Return the files after a kill at each step of a commit, and the result of an undisturbed one."""
    swap = prepare(directory, given.groups, FaultyFs())
    with_parts = read_image(directory)
    images = []
    while True:
        write_image(directory, with_parts)
        try:
            commit(swap, FaultyFs(Kill(len(images) + 1)))
        except Killed:
            images.append(read_image(directory))
        else:
            return [*images, read_image(directory)]


def inactive_segments(directory: Path) -> dict[str, bytes]:
    """Live files of the segments below the active one, whose indexes Kafka resizes; snapshots are the loader's."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name[0].isdigit() and path.name < ACTIVE and not path.name.endswith(".snapshot")
    }


@pytest.mark.conformance
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kept", [None, [31], [30, 34]], ids=["four groups", "a survivor", "no survivor"])
def test_kafka_opens_what_any_crash_left_and_finds_the_segments_that_our_start_finds(
    clean: bool, kept: list[int] | None, oracle: KafkaOracle, tmp_path: Path
):
    directory, given = full_scenario(tmp_path) if kept is None else survivor_scenario(tmp_path, kept)
    start = 0 if kept is None else 30
    for image in crashes(directory, given):
        write_image(directory, image)
        finish_interrupted(directory, FaultyFs())
        ours = inactive_segments(directory)
        write_image(directory, image)
        state = oracle.load(
            directory,
            now_ms=NOW_MS,
            configs=COMPACT,
            clean=clean,
            recovery_point=LOG_END,
            log_start_offset=start,
        )
        theirs = inactive_segments(directory)
        assert {name for name in theirs if not name.endswith(".part")} == set(ours)
        assert {name: theirs[name] for name in ours} == ours
        assert state.log_end_offset == LOG_END
        assert state.base_offsets[:-1] == tuple(sorted(int(name[:20]) for name in ours if name.endswith(".log")))


@pytest.mark.conformance
def test_kafka_keeps_the_old_transaction_index_beside_an_empty_new_log_and_we_do_not(
    oracle: KafkaOracle, tmp_path: Path
):
    directory, given = survivor_scenario(tmp_path, kept=[])
    log, old_index = f"{30:020d}.log", f"{30:020d}.txnindex"
    kept_by_kafka, undone = [], 0
    for image in crashes(directory, given):
        write_image(directory, image)
        repairs = finish_interrupted(directory, FaultyFs())
        ours = inactive_segments(directory)
        write_image(directory, image)
        oracle.load(directory, now_ms=NOW_MS, configs=COMPACT, recovery_point=LOG_END, log_start_offset=30)
        theirs = {name: content for name, content in inactive_segments(directory).items() if not name.endswith(".part")}
        if any("is not whole" in str(repair) for repair in repairs):
            assert (theirs[log], ours[log]) == (b"", given.groups[0].old[log])
            undone += 1
            continue
        kept_by_kafka.append(theirs.keys() - ours.keys())
        assert {name: theirs[name] for name in ours} == ours
    assert {frozenset(names) for names in kept_by_kafka} == {frozenset(), frozenset({old_index})}
    assert undone


@pytest.mark.conformance
def test_lm_01_kafkas_log_manager_does_not_start_on_a_directory_that_we_hold(oracle: KafkaOracle, tmp_path: Path):
    with DirectoryLock(tmp_path) as lock:
        with pytest.raises(KafkaFailedError, match=r"\.lock"):
            oracle.broker(tmp_path, now_ms=NOW_MS, topics={})
        lock.check()
    oracle.broker(tmp_path, now_ms=NOW_MS, topics={})
    with DirectoryLock(tmp_path) as lock:
        lock.check()
