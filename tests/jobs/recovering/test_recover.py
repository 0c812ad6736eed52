"""`sediment recover`: its reports, the files that it leaves, and the partitions that it does not touch."""

import json
import os
import shutil
import threading

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.process.standard_output import SafeConsole
from sediment.jobs.recover import RecoverOptions, recover
from sediment.jobs.recovering.report import RecoveryReport, RecoveryRunReport, print_report
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.settings.selection import Selection
from tests.corpus import assert_same_log, assert_same_snapshots, load_loading_case, loading_cases
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.jobs.terminal_text import StreamText
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.segments import list_segments

HAZARDS = ("torn-tail-clean", "flipped-middle-clean")
LOSES_RECORDS = "flipped-middle-unclean"
"""The case in which Kafka cuts off good batches after a bad one."""

MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CASE_NOW_MS = 1_700_001_000_000


def corpus_log_dir(scratch, name):
    """Return a log directory with the partition of a loading case, left as the case says."""
    case = load_loading_case(name, scratch)
    log_dir = scratch / f"logs-{name}"
    log_dir.mkdir()
    shutil.copytree(case.before, log_dir / case.partition)
    if case.clean:
        (log_dir / MARKER).touch()
    if case.recovery_point is not None:
        write_checkpoint(log_dir / RECOVERY_POINTS, {case.partition: case.recovery_point})
    if case.log_start_offset is not None:
        write_checkpoint(log_dir / LOG_STARTS, {case.partition: case.log_start_offset})
    return case, log_dir


def make_log_dir(path, *names, clean=False, recovery_points=True):
    """Partitions of two segments each, five batches, the last one torn in half unless the stop was clean."""
    for name in names:
        write_segment(path / name, 0, [batch_bytes(offset) for offset in range(3)])
        log = write_segment(path / name, 3, [batch_bytes(offset) for offset in (3, 4)])
        if not clean:
            log.write_bytes(log.read_bytes()[:-30])
    if clean:
        (path / MARKER).touch()
    if recovery_points:
        write_checkpoint(path / RECOVERY_POINTS, dict.fromkeys(names, 3))
    return path


def run(log_dir, *arguments):
    return sediment("recover", log_dir, "--json", "--now-ms", NOW_MS, *arguments)


def options_for(*log_dirs, partitions=()):
    return CommonOptions(log_dirs=log_dirs, selection=Selection(partitions), now_ms=NOW_MS, as_json=True, quiet=True)


# ----------------------------------------------------------------------------------------------------------- the corpus
@pytest.fixture(scope="module")
def recovered(tmp_path_factory):
    """name -> (case, log directory, report); one command recovers all the log directories."""
    scratch = tmp_path_factory.mktemp("corpus")
    cases = {name: corpus_log_dir(scratch, name) for name in loading_cases()}
    outcome = sediment("recover", *(log_dir for _, log_dir in cases.values()), "--json", "--now-ms", CASE_NOW_MS)
    assert outcome.status == 1, outcome.stderr
    reports = {report["log_dir"]: report for report in outcome.report["partitions"]}
    return {name: (case, log_dir, reports[str(log_dir)]) for name, (case, log_dir) in cases.items()}


def segment_rows(report):
    keys = ("base_offset", "bytes", "offset_index_entries", "time_index_entries", "next_offset", "largest_timestamp")
    return [tuple(segment[key] for key in keys) for segment in report["segments"]]


def kafka_rows(kafka, partition):
    rows = []
    for segment in kafka.segments:
        timestamp = segment.largest_timestamp
        if not segment.time_index_entries:
            timestamp = (partition / f"{segment.base_offset:020d}.log").stat().st_mtime_ns // 1_000_000
        rows.append(
            (
                segment.base_offset,
                segment.log_bytes,
                segment.offset_index_entries,
                segment.time_index_entries,
                segment.next_offset,
                timestamp,
            )
        )
    return rows


def assert_reports_kafkas_state(report, kafka, partition):
    assert report["log_start_offset"] == kafka.log_start_offset
    assert report["log_end_offset"] == kafka.log_end_offset
    assert report["last_stable_offset"] == kafka.last_stable_offset
    assert report["first_unstable_offset"] == kafka.first_unstable_offset
    assert report["recovery_point"] == kafka.recovery_point
    assert segment_rows(report) == kafka_rows(kafka, partition)
    assert report["producers"] == [list(producer) for producer in kafka.producers]
    assert report["aborted"] == [list(entry) for entry in kafka.aborted]


@pytest.mark.parametrize("name", [name for name in loading_cases() if name not in HAZARDS])
def test_a_case_of_kafkas_ends_as_kafka_left_it(recovered, name):
    case, log_dir, report = recovered[name]
    partition = log_dir / case.partition
    lost = ("failed", "records-missing") if name == LOSES_RECORDS else ("recovered", None)
    assert (report["status"], report["reason_code"]) == lost
    assert [each["kind"] for each in report["missing_records"]] == ["log-end"] * (name == LOSES_RECORDS)
    assert_reports_kafkas_state(report, case.kafka, partition)
    assert_same_log(partition, case.after, compressed=False)
    assert_same_snapshots(partition, case.after)
    assert sorted(os.listdir(partition)) == sorted(os.listdir(case.after))
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {case.partition: case.kafka.log_end_offset}
    assert (log_dir / MARKER).exists()


def test_hazard_torn_tail_clean_is_truncated_and_reported(recovered):
    case, log_dir, report = recovered["torn-tail-clean"]
    assert (report["status"], report["log_end_offset"], report["recovery_point"]) == ("recovered", 1588, 1588)
    assert any("00000000000000001442.log cut from 20195 to 17243 bytes" in sentence for sentence in report["repairs"])
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {case.partition: 1588}
    assert (log_dir / MARKER).exists()


def test_hazard_flipped_middle_clean_is_reported_and_left_alone(recovered):
    case, log_dir, report = recovered["flipped-middle-clean"]
    assert (report["status"], report["reason_code"], report["repairs"]) == ("failed", "corrupt-batch", [])
    assert "00000000000000000713.log is damaged at position 18860 (offset 892)" in report["reason"]
    assert_reports_kafkas_state(report, case.kafka, log_dir / case.partition)
    assert tree(log_dir / case.partition) == tree(case.before)
    assert (log_dir / MARKER).exists()
    assert not (log_dir / RECOVERY_POINTS).exists()


def test_a_log_start_inside_the_first_segments_stays_checkpointed(recovered):
    case, log_dir, _ = recovered["log-start-in-middle"]
    assert read_checkpoint(log_dir / LOG_STARTS) == {case.partition: 800}


# -------------------------------------------------------------------------------------------------------- the directory
def test_a_recovered_directory_is_clean_and_compact_takes_it(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    sets = ("--set=t:cleanup.policy=compact", "--set=u:cleanup.policy=compact", "--dry-run", "--force")
    before = sediment("compact", log_dir, "--json", "--now-ms", NOW_MS, *sets).partitions()
    assert before["t-0"]["first_uncleanable_offset"] == 3
    outcome = run(log_dir)
    assert outcome.status == 0, outcome.stderr
    assert outcome.report["clean_directories"] == [str(log_dir)]
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {"t-0": 4, "u-0": 4}
    assert (log_dir / MARKER).read_bytes() == b""
    for name in ("t-0", "u-0"):
        assert [segment.next_offset() for segment in list_segments(log_dir / name)] == [3, 4]
    after = sediment("compact", log_dir, "--json", "--now-ms", NOW_MS, *sets).partitions()
    assert {name: report["reason_code"] for name, report in after.items()} == {"t-0": None, "u-0": None}


def test_a_bare_copy_is_recovered_from_its_start(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", recovery_points=False)
    data = bytearray((log_dir / "t-0" / f"{0:020d}.log").read_bytes())
    data[-1] ^= 1
    (log_dir / "t-0" / f"{0:020d}.log").write_bytes(data)
    report = run(log_dir).partitions()["t-0"]
    assert (report["log_end_offset"], report["recovery_point"]) == (2, 0)
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {"t-0": 2}
    assert (log_dir / MARKER).exists()


def test_selected_partitions_are_recovered_and_the_directory_stays_unclean(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    before = tree(log_dir / "u-0")
    outcome = run(log_dir, "--partition", "t-*")
    assert (outcome.status, list(outcome.partitions())) == (0, ["t-0"])
    assert outcome.report["clean_directories"] == []
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {"t-0": 4, "u-0": 3}
    assert not (log_dir / MARKER).exists()
    assert tree(log_dir / "u-0") == before


def test_a_partition_that_fails_leaves_the_directory_unclean_and_the_others_done(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    (log_dir / "u-0" / "foo.log").touch()
    outcome = run(log_dir)
    assert outcome.status == 1
    reports = outcome.partitions()
    assert (reports["t-0"]["status"], reports["u-0"]["status"]) == ("recovered", "failed")
    assert reports["u-0"]["reason_code"] == "corrupt-data"
    assert "foo.log" in reports["u-0"]["reason"]
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {"t-0": 4, "u-0": 3}
    assert not (log_dir / MARKER).exists()


def test_a_cleanly_stopped_directory_keeps_its_marker(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", clean=True)
    (log_dir / MARKER).write_bytes(b'{"version":0,"brokerEpoch":7}')
    assert run(log_dir).status == 0
    assert (log_dir / MARKER).read_bytes() == b'{"version":0,"brokerEpoch":7}'


def test_future_replicas_are_recovered_and_dying_and_stray_ones_ignored(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    others = {state: f"u-0.{'0' * 32}-{state}" for state in ("future", "delete", "stray")}
    for name in others.values():
        shutil.copytree(log_dir / "t-0", log_dir / name)
    ignored = {name: tree(log_dir / others[name]) for name in ("delete", "stray")}
    outcome = run(log_dir)
    assert sorted(outcome.partitions()) == ["t-0", others["future"]]
    assert list_segments(log_dir / others["future"])[-1].next_offset() == 4
    assert {name: tree(log_dir / others[name]) for name in ("delete", "stray")} == ignored
    assert (log_dir / MARKER).exists()
    for selected in ("u-0.*", others["future"]):
        assert sorted(run(log_dir, "--partition", selected).partitions()) == [others["future"]]
    assert run(log_dir, "--partition", others["stray"]).status == 2


def test_the_metadata_log_and_the_tiered_cache_are_left_alone(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    (log_dir / "remote-log-index-cache").mkdir()
    (log_dir / "__cluster_metadata-0").mkdir()
    (log_dir / "__cluster_metadata-0" / f"{0:020d}.log").touch()
    before = tree(log_dir / "__cluster_metadata-0")
    outcome = run(log_dir)
    assert list(outcome.partitions()) == ["t-0"]
    assert tree(log_dir / "__cluster_metadata-0") == before
    assert (log_dir / MARKER).exists()


@pytest.mark.parametrize("records", [1, 50], ids=["shorter", "longer"])
def test_the_offsets_of_the_live_log_are_written_where_a_future_replica_lies_beside_it(tmp_path, records):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", recovery_points=False)
    write_segment(log_dir / f"t-0.{'0' * 32}-future", 100, [batch_bytes(100 + n) for n in range(records)])
    write_checkpoint(log_dir / RECOVERY_POINTS, {"t-0": 3})
    outcome = run(log_dir, "--threads", 1)
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.partitions()) == 2
    assert read_checkpoint(log_dir / RECOVERY_POINTS) == {"t-0": 4}
    assert not (log_dir / LOG_STARTS).exists()


def test_a_directory_that_a_broker_would_not_start_on_is_named(tmp_path, caplog):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    (log_dir / "lost+found").mkdir()
    outcome = run(log_dir)
    assert outcome.status == 0
    assert "'lost+found' is not named topic-partition" in caplog.text + outcome.stderr


def test_a_log_start_that_has_become_the_first_base_leaves_the_checkpoint(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    write_checkpoint(log_dir / LOG_STARTS, {"t-0": 2, "u-0": 0, "gone-0": 7})
    assert run(log_dir).status == 0
    assert read_checkpoint(log_dir / LOG_STARTS) == {"t-0": 2, "gone-0": 7}


def test_the_high_watermark_of_the_checkpoint_decides_the_last_stable_offset(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": 2})
    reports = run(log_dir).partitions()
    assert [reports[name]["last_stable_offset"] for name in ("t-0", "u-0")] == [2, 0]


# ---------------------------------------------------------------------------------------------------------- careful use
def stamps(path):
    return {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in path.rglob("*")}


def test_a_dry_run_reports_the_same_and_changes_nothing(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "u-0")
    (log_dir / "u-0" / f"{0:020d}.index").unlink()
    (log_dir / "u-0" / f"{0:020d}.log.cleaned").write_bytes(b"half")
    files, before = tree(log_dir), stamps(log_dir)
    rehearsed = run(log_dir, "--dry-run")
    assert (rehearsed.status, rehearsed.report["clean_directories"]) == (0, [])
    assert (tree(log_dir), stamps(log_dir)) == (files, before)
    done = run(log_dir)
    assert rehearsed.report["dry_run"]
    for name, report in done.partitions().items():
        assert rehearsed.partitions()[name]["repairs"] == report["repairs"]
        assert rehearsed.partitions()[name]["log_end_offset"] == report["log_end_offset"] == 4


@pytest.mark.parametrize("name", loading_cases())
def test_a_dry_run_of_a_kafka_case_changes_nothing_and_predicts_the_state(tmp_path, recovered, name):
    _, log_dir = corpus_log_dir(tmp_path, name)
    files, before = tree(log_dir), stamps(log_dir)
    options = CommonOptions(log_dirs=(log_dir,), now_ms=CASE_NOW_MS, as_json=True, quiet=True)
    (report,) = recover(options, RecoverOptions(dry_run=True)).partitions
    assert (tree(log_dir), stamps(log_dir)) == (files, before)
    real = dict(recovered[name][2])
    foretold = json.loads(json.dumps({key: getattr(report, key) for key in ("log_end_offset", "producers", "aborted")}))
    assert foretold == {key: real[key] for key in foretold}
    assert list(report.repairs) == real["repairs"]


def test_a_dry_run_names_the_real_files_in_errors(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    (log_dir / "t-0" / "foo.log").touch()
    outcome = run(log_dir, "--dry-run")
    assert str(log_dir / "t-0" / "foo.log") in outcome.partitions()["t-0"]["reason"]


def test_a_directory_in_use_is_left_alone(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    with DirectoryLock(log_dir):
        before = tree(log_dir)
        outcome = run(log_dir)
        assert (outcome.status, outcome.stdout) == (1, "")
        assert "lock" in outcome.stderr
        assert run(log_dir, "--dry-run").status == 0
        assert tree(log_dir) == before


def test_wrong_use_is_status_2(tmp_path):
    assert run(tmp_path / "missing").status == 2
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    assert run(log_dir / "t-0").status == 2
    assert run(log_dir, "--threads", "0").status == 2


def test_a_stopped_run_leaves_the_rest_for_the_next(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    before = tree(log_dir / "t-0")
    stop = threading.Event()
    stop.set()
    report = recover(options_for(log_dir), stop=stop)
    assert (report.failed, report.partitions[0].reason_code) == (True, "stopped")
    assert tree(log_dir / "t-0") == before
    assert not (log_dir / MARKER).exists()


def test_several_directories_and_threads_give_every_partition_its_report(tmp_path):
    dirs = [make_log_dir(tmp_path / f"logs-{n}", *(f"t{n}-{p}" for p in range(8))) for n in range(3)]
    report = recover(options_for(*dirs), RecoverOptions(threads=4))
    assert [partition.partition for partition in report.partitions] == [f"t{n}-{p}" for n in range(3) for p in range(8)]
    assert {partition.log_end_offset for partition in report.partitions} == {4}
    assert report.clean_directories == tuple(map(str, dirs))


def test_an_empty_log_directory_becomes_clean(tmp_path):
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    write_checkpoint(log_dir / RECOVERY_POINTS, {})
    outcome = run(log_dir)
    assert (outcome.status, outcome.report["partitions"]) == (0, [])
    assert (log_dir / MARKER).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_new_files_have_the_owner_of_the_log(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, 1234, 1234)
    assert run(log_dir).status == 0
    assert {path.stat().st_uid for path in (log_dir, *log_dir.rglob("*"))} == {1234}


@pytest.fixture
def healthy(tmp_path):
    """Return a directory after a clean stop, with an idle partition and files whose deletion had begun."""
    log_dir = make_log_dir(tmp_path / "logs", "t-0", "idle-0")
    assert run(log_dir).status == 0
    for suffix in (".log", ".index", ".timeindex"):
        (log_dir / "idle-0" / f"{3:020d}{suffix}").write_bytes(b"")
    for path in (log_dir / "idle-0").glob(f"{0:020d}.*"):
        path.unlink()
    for path in (log_dir / "idle-0").glob("*.snapshot"):
        path.unlink()
    write_checkpoint(log_dir / RECOVERY_POINTS, {"t-0": 4, "idle-0": 3})
    (log_dir / "idle-0" / "leader-epoch-checkpoint").write_text("0\n1\n7 3\n")
    (log_dir / "t-0" / f"{0:020d}.log.deleted").write_bytes(b"")
    return log_dir


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_healthy_directory_has_nothing_to_repair(healthy, dry_run):
    outcome = run(healthy, *dry_run)
    assert outcome.status == 0
    partitions = outcome.partitions()
    assert {name: report["repairs"] for name, report in partitions.items()} == {"t-0": [], "idle-0": []}
    assert partitions["idle-0"]["log_end_offset"] == 3
    assert any("leader-epoch-checkpoint rewritten" in sentence for sentence in partitions["idle-0"]["housekeeping"])
    assert any(".log.deleted deleted" in sentence for sentence in partitions["t-0"]["housekeeping"])
    assert outcome.report["clean_directories"] == [str(healthy)]


def test_a_healthy_directory_is_said_to_be_checked(healthy):
    outcome = sediment("recover", healthy, "--dry-run", "--now-ms", NOW_MS)
    assert "2 checked, nothing to repair" in outcome.stdout
    assert "repairs," not in outcome.stdout
    assert "would be" not in outcome.stdout


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_same_repair_of_many_files_is_one_line_on_a_terminal_and_one_for_each_file_in_a_pipe(is_terminal):
    rows = [
        RecoveryReport(f"t-{number}", "/logs", "recovered", repairs=(f"{number:020}.timeindex rewritten: why",))
        for number in range(20)
    ]
    report = RecoveryRunReport(
        run_id="run",
        command="recover",
        now_ms=NOW_MS,
        seconds=1.0,
        partitions=(*rows, RecoveryReport("u-0", "/logs", "recovered")),
        dry_run=True,
        clean_directories=(),
    )
    text = StreamText(is_terminal=is_terminal)
    print_report(report, Screen(SafeConsole(file=text, width=300, color_system=None)))
    lines = [line for line in text.getvalue().splitlines() if ".timeindex" in line]
    assert len(lines) == (1 if is_terminal else 20)
    assert ("would be: N.timeindex rewritten: why; a pipe, or --json, names each file" in lines[0]) is is_terminal
    assert "20 would be recovered with 20 repairs, 1 unchanged, 0 failed" in text.getvalue()


def test_what_was_not_verified_is_not_said_to_be_checked(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    assert run(log_dir).status == 0
    (log_dir / MARKER).unlink()
    outcome = sediment("recover", log_dir, "--dry-run", "--now-ms", NOW_MS)
    assert "1 checked from their recovery points on, nothing to repair" in outcome.stdout
    assert run(log_dir, "--dry-run").partitions()["t-0"]["verified_from_offset"] == 3


def test_the_table_names_the_repairs(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", "t-0")
    outcome = sediment("recover", log_dir, "--now-ms", NOW_MS)
    assert outcome.status == 0
    assert "t-0: 00000000000000000003.log cut from" in outcome.stdout
    assert "1 recovered with" in outcome.stdout
