"""Options of Spark's Kafka source on files: the same partitions, offsets and columns; one sentence for wrong use."""

from __future__ import annotations

import json

import pytest

from sediment.jobs.data_source.options import SourceOptions
from sediment.jobs.data_source.stream_offsets import parse_offsets
from sediment.jobs.datasource import KafkaLogSource, KafkaLogStreamReader
from sediment.segment_io.errors import OffsetOutOfRangeError, SedimentError, SourceChangedError, UsageError
from tests.segments import ABORT, batch_bytes, marker_bytes, write_segment

START_MS = 1_700_000_000_000
ALL_OFFSETS = {"a-0": range(10, 40), "a-1": range(6), "b-0": range(6)}


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Partition a-0 begins at offset 10; each batch of two is two ms after the last."""
    directory = tmp_path_factory.mktemp("logs")
    for name, offsets in ALL_OFFSETS.items():
        batches = [batch_bytes(o, "ab", timestamp=START_MS + o) for o in offsets[::2]]
        write_segment(directory / name, offsets[0], batches, index_interval_bytes=200)
    return directory


def read(path, **options):
    """Return the offsets by partition that a batch query reads."""
    source = KafkaLogSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    found = {}
    for task in reader.partitions():
        for batch in reader.read(task):
            for row in batch.select(["topic", "partition", "offset"]).to_pylist():
                found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row["offset"])
    return found


def offsets(**partitions):
    return {name.replace("_", "-"): list(found) for name, found in partitions.items()}


def positions(**by_topic):
    return json.dumps(by_topic)


# ----------------------------------------------------------------------------------------------------------- partitions
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"subscribe": "a"}, {"a-0", "a-1"}),
        ({"subscribe": " a , b,"}, {"a-0", "a-1", "b-0"}),
        ({"subscribePattern": "[bc]"}, {"b-0"}),
        ({"subscribePattern": "a|bb"}, {"a-0", "a-1"}),
        ({"assign": '{"a": [1], "b": [0]}'}, {"a-1", "b-0"}),
    ],
)
def test_partitions_are_chosen_by_topic_pattern_or_number(options, names, log_dir):
    assert read(log_dir, **options).keys() == names


# -------------------------------------------------------------------------------------------------------------- offsets
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, offsets(a_0=range(10, 40), a_1=range(6))),
        (
            {"startingOffsets": positions(a={"0": 21, "1": -2}), "endingOffsets": positions(a={"0": 25, "1": -1})},
            offsets(a_0=range(21, 25), a_1=range(6)),
        ),
        ({"startingOffsets": positions(a={"0": 3, "1": 6})}, offsets(a_0=range(10, 40))),
        ({"startingTimestamp": str(START_MS + 3)}, offsets(a_0=range(10, 40), a_1=range(4, 6))),
        ({"endingTimestamp": str(START_MS + 12)}, offsets(a_0=range(10, 12), a_1=range(6))),
        (
            {
                "startingOffsetsByTimestamp": positions(a={"0": START_MS + 20, "1": START_MS}),
                "endingOffsetsByTimestamp": positions(a={"0": START_MS + 30, "1": START_MS + 2}),
            },
            offsets(a_0=range(20, 30), a_1=range(2)),
        ),
        (
            {"startingTimestamp": str(START_MS + 30), "startingOffsetsByTimestampStrategy": "latest"},
            offsets(a_0=range(30, 40)),
        ),
    ],
)
def test_a_batch_query_reads_from_the_start_to_below_the_end(options, found, log_dir):
    assert read(log_dir, subscribe="a", **options) == found


def test_a_timestamp_counts_before_timestamps_by_partition_and_these_before_offsets(log_dir):
    starts = {
        "startingOffsets": positions(b={"0": 1}),
        "startingOffsetsByTimestamp": positions(b={"0": START_MS + 2}),
        "startingTimestamp": str(START_MS + 4),
    }
    for first in (4, 2, 1):
        assert read(log_dir, subscribe="b", **starts) == offsets(b_0=range(first, 6))
        starts.popitem()


def test_a_committed_query_starts_at_the_first_record_that_it_gets(tmp_path):
    aborted = batch_bytes(0, "ab", timestamp=START_MS, producer_id=5, transactional=True)
    marker = marker_bytes(2, ABORT, producer_id=5, timestamp=START_MS + 1)
    write_segment(tmp_path / "t-0", 0, [aborted, marker, batch_bytes(3, "c", timestamp=START_MS + 3)])
    options = {"startingTimestamp": str(START_MS), "isolation": "read_committed"}
    assert read(tmp_path, **options) == offsets(t_0=[3])


# ------------------------------------------------------------------------------------------------------------ data loss
def test_an_offset_that_the_log_does_not_hold_is_an_error_if_the_query_fails_on_data_loss(log_dir):
    for given, offset in (("startingOffsets", 3), ("startingOffsets", 41), ("endingOffsets", 41)):
        options = {"assign": '{"a": [0]}', given: positions(a={"0": offset})}
        assert len(read(log_dir, failOnDataLoss="false", **options).get("a-0", [])) in (0, 30)
        sentence = f"{given} is {offset}, but the log contains the offsets from 10 up to but not including 40"
        with pytest.raises(OffsetOutOfRangeError, match=sentence):
            read(log_dir, failOnDataLoss="TRUE", **options)


def stream(path, **options):
    return KafkaLogStreamReader(SourceOptions.parse({"path": str(path), **options}))


def plain(progress):
    """Return only the offsets in a stream's progress."""
    return {name: entry.offset for name, entry in parse_offsets(progress).items()}


def test_a_stream_fails_on_removed_records_and_partitions_only_if_asked_to(log_dir):
    start = {"a-0": 4, "gone-0": 7}
    lenient = stream(log_dir)
    end = lenient.latestOffset(start, lenient.getDefaultReadLimit())
    assert plain(end) == {"a-0": 40, "a-1": 6, "b-0": 6, "gone-0": 7}
    assert lenient.partitions(start, end)
    strict = stream(log_dir, failOnDataLoss="true")
    with pytest.raises(SourceChangedError, match=r"the partition was removed .*\(partition gone-0\)"):
        strict.latestOffset(start, strict.getDefaultReadLimit())
    with pytest.raises(SourceChangedError, match="offsets 4 to 9 were removed by retention"):
        strict.partitions(start, end)


# -------------------------------------------------------------------------------------------------------------- streams
@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"startingOffsets": "earliest"}, {}),
        ({"startingOffsets": "latest"}, {"a-0": 40, "a-1": 6}),
        ({"startingOffsets": positions(a={"0": 25, "1": -2})}, {"a-0": 25}),
        ({"startingOffsets": positions(a={"0": -1, "1": 2})}, {"a-0": 40, "a-1": 2}),
        ({"startingTimestamp": str(START_MS + 4)}, {"a-0": 10, "a-1": 4}),
    ],
)
def test_a_stream_starts_where_it_is_told_and_later_partitions_at_their_beginning(options, starts, log_dir):
    assert plain(stream(log_dir, subscribe="a", **options).initialOffset()) == starts


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": positions(a={"0": 25})},
        {"startingOffsets": positions(a={"0": 3, "1": 0}), "failOnDataLoss": "true"},
        {"startingTimestamp": str(START_MS * 2)},
    ],
)
def test_a_stream_restarts_from_its_checkpoint_whatever_its_starting_offsets_have_become(options, log_dir):
    source = KafkaLogSource({"path": str(log_dir), "subscribe": "a", **options})
    reader = source.streamReader(source.schema())
    start = {"a-0": 30, "a-1": 2}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert plain(end) == {"a-0": 40, "a-1": 6}
    assert reader.partitions(start, end)
    with pytest.raises(SedimentError):
        reader.initialOffset()


def test_a_stream_has_the_limit_and_the_partitions_of_its_options(log_dir):
    reader = stream(log_dir, assign='{"a": [0]}', maxOffsetsPerTrigger="5")
    assert plain(reader.latestOffset({}, reader.getDefaultReadLimit())) == {"a-0": 15}


def test_headers_are_a_column_unless_they_are_left_out(log_dir):
    def columns(**options):
        return KafkaLogSource({"path": str(log_dir), **options}).schema().fieldNames()

    assert columns() == columns(includeHeaders="true")
    assert columns(includeHeaders="false") == [name for name in columns() if name != "headers"]


# ------------------------------------------------------------------------------------------------------------ wrong use
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "a", "topics": "b"}, "subscribe and topics exclude each other; give one of them"),
        ({"assign": "{}", "partitions": "0"}, "assign and partitions exclude each other"),
        ({"startingOffsets": "earliest", "offsets": "1:"}, "startingOffsets and offsets exclude each other"),
        ({"endingTimestamp": "1", "timestamps_ms": "1:"}, "endingTimestamp and timestamps_ms exclude each other"),
        ({"startingOffsets": "latest", "starting": "latest"}, "startingOffsets and starting exclude each other"),
        (
            {"maxOffsetsPerTrigger": "1", "max_offsets_per_trigger": "1"},
            "maxOffsetsPerTrigger and max_offsets_per_trigger exclude each other",
        ),
        ({"includeHeaders": "false", "columns": "key"}, "includeHeaders and columns exclude each other"),
        ({"subscribe": "a", "assign": "{}"}, "subscribe and assign exclude each other"),
        ({"subscribe": "c"}, "the paths contain no topic 'c'"),
        ({"assign": '{"a": [7]}'}, "the paths contain no partition a-7; there are a-0, a-1, b-0"),
        ({"subscribe": ""}, "subscribe cannot be ''; name a topic, or leave it out"),
        ({"subscribe": " ,"}, "subscribe cannot be ' ,'; name a topic"),
        ({"assign": "{}"}, "assign cannot be '{}'; name a partition, or leave it out"),
        ({"assign": '{"a": []}'}, "assign cannot be '{\"a\": []}'; name a partition"),
        ({"subscribePattern": "nothing"}, "subscribePattern 'nothing' matches no topic of the paths; correct it"),
        (
            {"what": "segments", "startingTimestamp": "1"},
            "startingTimestamp does not apply to table 'segments'; leave it out, or read batches or records",
        ),
        ({"what": "epochs", "endingOffsets": "latest"}, "endingOffsets does not apply to table 'epochs'"),
        ({"assign": "a"}, "assign cannot be 'a'; write it as {\"orders\": [0, 1]}"),
        ({"subscribePattern": "("}, "subscribePattern '(' is not a regular expression"),
        ({"startingOffsets": "first"}, "startingOffsets cannot be 'first'; write it as"),
        ({"startingOffsets": '{"a": {"0": 1, "1": "2"}}'}, "startingOffsets cannot be"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets cannot be -3 for a-0; give -2 or more"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest'"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets cannot be -2 for a-0; give -1 or more"),
        ({"startingOffsets": '{"a": {"0": 1, "1": 1}}'}, "startingOffsets does not name partition b-0"),
        (
            {"subscribe": "b", "startingOffsets": '{"a": {"0": 1}, "b": {"0": 1}}'},
            "startingOffsets names partition a-0, which is not read; leave it out",
        ),
        ({"startingTimestamp": "now"}, "startingTimestamp cannot be 'now'; give a time in ms since 1970"),
        ({"startingTimestamp": str(START_MS * 2)}, "and no record has this timestamp or a later one (partition a-0)"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "cannot be 'x'; give error or latest"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss cannot be 'maybe'; give true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger cannot be '0'"),
        ({"startingOffset": "1"}, "kafka-log has no option 'startingoffset'; did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "h:9092"}, "leave the option out: kafka-log reads files and needs no broker"),
        ({"kafka.isolation.level": "read_committed"}, "give isolation instead"),
        ({"minPartitions": "9"}, "give task_bytes instead"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query; give earliest"),
        ({"startingOffsets": '{"a": {"0": -1, "1": 0}, "b": {"0": 0}}'}, "cannot be latest in a batch query"),
    ],
)
def test_wrong_use_is_one_sentence(options, sentence, log_dir):
    with pytest.raises(UsageError) as raised:
        read(log_dir, **options)
    assert sentence in str(raised.value)


def test_a_stream_has_no_end(log_dir):
    source = KafkaLogSource({"path": str(log_dir), "endingOffsets": "latest"})
    with pytest.raises(UsageError, match="endingOffsets cannot be given to a stream; leave it out"):
        source.streamReader(source.schema()).initialOffset()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "options",
    [
        {"paths": '"/data"'},
        {"paths": '{"/data": 1}'},
        {"paths": '["/data", null]'},
        {"paths": DEEP},
        {"path": "/data", "assign": DEEP},
        {"path": "/data", "startingOffsets": DEEP},
        {"path": "/data", "task_bytes": "9" * 5000},
        {"path": "/data", "startingTimestamp": "9" * 5000},
        {"path": "/data", "startingOffsets": json.dumps({"a": {"9" * 5000: 1}})},
    ],
)
def test_options_of_another_form_are_refused_in_one_sentence(options):
    with pytest.raises(UsageError, match="cannot be"):
        SourceOptions.parse({name.lower(): value for name, value in options.items()})
