"""Every round of every cleaning case of Kafka 4.2.0, repeated from the command line, compared with Kafka's files."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.corpus import assert_same_log, assert_same_snapshots, cleaning_cases, load_case
from tests.jobs.log_dirs import corpus_log_dir, read_checkpoint, sediment


def grouped_rounds(tmp_path):
    """(now_ms, map bytes) -> the (case, round) that one command can clean together; one round of a case each."""
    groups = defaultdict(list)
    for name in cleaning_cases(magic2_only=False):
        case = load_case(name, tmp_path)
        for number, given in enumerate(case.rounds):
            groups[given.now_ms, given.map_bytes, number].append((case, given))
    return groups


@pytest.fixture(scope="module", params=["whole", "split"])
def cleaned(tmp_path_factory, request):
    """name, round number -> (case, round, log directory, the partition's report)."""
    scratch = tmp_path_factory.mktemp("corpus")
    results = {}
    for index, ((now_ms, map_bytes, number), rounds) in enumerate(sorted(grouped_rounds(scratch).items(), key=str)):
        log_dir, options = corpus_log_dir(scratch / f"logs-{index}", rounds)
        if map_bytes is not None:
            options.append(f"--set=log.cleaner.dedupe.buffer.size={map_bytes}")
        options.append(f"--strategy={request.param}")
        outcome = sediment("compact", log_dir, "--force", "--json", "--now-ms", now_ms, *options)
        assert outcome.status == 0, outcome.stderr
        for case, given in rounds:
            results[case.name, number] = (case, given, log_dir, outcome.partitions()[case.partition])
    return results


@pytest.fixture
def strategy(request):
    """Return the strategy that the directory was cleaned with."""
    return request.node.callspec.params["cleaned"]


def all_rounds():
    import json
    import lzma
    import tarfile
    from pathlib import Path

    corpus = Path(__file__).parents[1] / "data" / "corpus" / "cleaning"
    for name in cleaning_cases(magic2_only=False):
        with lzma.open(corpus / f"{name}.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
            content = archive.extractfile(f"{name}/case.json")
            for number in range(len(json.load(content)["rounds"])):
                yield name, number


@pytest.mark.parametrize(("name", "number"), list(all_rounds()))
def test_a_round_leaves_what_kafka_left(cleaned, strategy, name, number):
    case, given, log_dir, report = cleaned[name, number]
    partition = log_dir / case.partition
    assert report["status"] == "compacted"
    assert report["strategy"] == ("whole" if given.map_bytes is not None else strategy)
    assert_same_log(partition, given.after, case.compressed)
    assert_same_snapshots(partition, given.after)
    assert sorted(path.name for path in partition.iterdir()) == sorted(path.name for path in given.after.iterdir())


@pytest.mark.parametrize(("name", "number"), list(all_rounds()))
def test_a_round_reports_and_checkpoints_what_kafka_did(cleaned, name, number):
    case, given, log_dir, report = cleaned[name, number]
    kafka = given.kafka
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint")[case.partition] == kafka.end_offset
    assert report["first_dirty_offset"] == kafka.first_dirty_offset
    assert report["next_dirty_offset"] == kafka.end_offset
    assert report["segments"] == list(kafka.segments)
    assert (report["messages_read"], report["messages_written"]) == (kafka.messages_read, kafka.messages_written)
    assert report["bytes_before"] == kafka.bytes_before
    if not case.compressed:
        assert report["bytes_after"] == kafka.bytes_after
