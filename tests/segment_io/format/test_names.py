"""Names of partition directories and segment files."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    Attempt,
    DirectoryState,
    SegmentFileKind,
    SegmentFileName,
    TopicPartition,
    aside_directory_name,
    by_number,
    future_directory_name,
    leading_offset,
    parse_partition_directory,
    parse_segment_file,
    part_file_name,
    segment_file_name,
    with_suffix,
)

UUID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "partition", "state"),
    [
        ("foo-bar-3", TopicPartition("foo-bar", 3), DirectoryState.LIVE),
        ("foo.bar-3", TopicPartition("foo.bar", 3), DirectoryState.LIVE),
        (f"foo.bar-3.{UUID}-delete", TopicPartition("foo.bar", 3), DirectoryState.DELETE),
        (f"foo.bar-3.{UUID}-future", TopicPartition("foo.bar", 3), DirectoryState.FUTURE),
        (f"foo-3.{UUID}-stray", TopicPartition("foo", 3), DirectoryState.STRAY),
    ],
)
def test_lm_07_names_of_partition_directories(name, partition, state):
    assert parse_partition_directory(name) == (partition, state)


@pytest.mark.parametrize("name", ["", "topic", "-3", "topic-", "topic-x", "topic-1-delete", "a-1.b", "lost+found"])
def test_lm_07_other_names_are_refused(name):
    with pytest.raises(UsageError, match="not named topic-partition"):
        parse_partition_directory(name)


@pytest.mark.parametrize(
    "name",
    ["t-0", f"t-{2**31 - 1}", f"{'t' * 249}-0", "t--0", "-t-0", "...-0", "_-7", f"t-0.{UUID}-delete", "__a.b-C_-10"],
)
def test_every_name_that_kafka_gives_a_partition_is_one(name):
    partition, state = parse_partition_directory(name)
    assert state or str(partition) == name


@pytest.mark.parametrize("name", ["t-00", "t-+0", "t-007", "t-000000000000000000", f"t-00.{UUID}-future"])
def test_another_spelling_of_a_partition_is_refused(name):
    with pytest.raises(UsageError, match=r"the name of that partition is t-[07]; a broker treats it as t-[07], and"):
        parse_partition_directory(name)


@pytest.mark.parametrize(
    "name",
    [
        "old backup-1",
        "a\nb-0",
        "\x1b[31mred-0",
        "\udcffq-0",
        "töpic-0",
        "a/b-0",
        ".-0",
        "..-0",
        f"{'t' * 250}-0",
        "a b-1.0123-stray",
    ],
)
def test_topics_that_kafka_does_not_allow_are_refused_and_the_sentence_can_be_printed(name):
    with pytest.raises(UsageError, match="Kafka allows no topic of that name") as caught:
        parse_partition_directory(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "t-9999999999",
        f"t-{2**31}",
        "t-" + "9" * 5000,
        "t-0\n",
        "t-\u0663",
        "t-0_1",
        "t- 1",
        "t-0.-delete",
        "t-0.a\nb-delete",
        "t-0.\x1b[2J-future",
        "-delete",
        "t-0.x-deleted",
    ],
)
def test_names_that_no_broker_starts_on_are_refused(name):
    with pytest.raises(UsageError, match="a broker refuses to start on this directory"):
        parse_partition_directory(name)


@pytest.mark.parametrize("state", [DirectoryState.DELETE, DirectoryState.STRAY])
def test_a_directory_set_aside_is_read_as_its_partition_again(state):
    name = aside_directory_name(TopicPartition("foo-bar", 3), state, UUID)
    assert name == f"foo-bar-3.{UUID}{state}"
    assert parse_partition_directory(name) == (TopicPartition("foo-bar", 3), state)


@pytest.mark.parametrize("partition", [0, 3, 2**31 - 1])
@pytest.mark.parametrize("state", [DirectoryState.DELETE, DirectoryState.STRAY])
def test_the_topic_of_a_directory_set_aside_is_cut_to_the_longest_file_name(partition, state):
    suffix = f"-{partition}.{UUID}{state}"
    fits = "t" * (255 - len(suffix))
    assert aside_directory_name(TopicPartition(fits, partition), state, UUID) == fits + suffix
    assert aside_directory_name(TopicPartition(fits + "ab", partition), state, UUID) == fits + suffix


def test_a_partition_is_printed_as_its_directory_is_named():
    assert str(TopicPartition("foo-bar", 3)) == "foo-bar-3"


@pytest.mark.parametrize("kind", list(SegmentFileKind))
@pytest.mark.parametrize("base_offset", [0, 7, 2**63 - 1])
def test_segment_files_are_found_again_by_their_names(base_offset, kind):
    name = segment_file_name(base_offset, kind)
    assert len(name) == 20 + len(kind)
    assert parse_segment_file(name) == SegmentFileName(base_offset, kind, "")
    for state in (".cleaned", ".swap", ".deleted"):
        assert parse_segment_file(name + state) == SegmentFileName(base_offset, kind, state)
    assert parse_segment_file(part_file_name(base_offset, kind, Attempt("run", "1.0.2"))) == SegmentFileName(
        base_offset, kind, ".part"
    )


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "foo.log",
        "7.txt",
        "7.log",
        "00000000000000000000.log.tmp",
        "00000000000000000000.log\n",
        "00000000000000000000.log.swap\n",
        "00000000000000000000.log.run-1.part\n",
        "000000000000000000000000.log",
        "٠" * 20 + ".log",
    ],
)
def test_other_files_are_no_segment_files(name):
    assert parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000007.log", 7),
        ("7.index", 7),
        ("12.3.index", 12),
        (f"{2**63 - 1}.timeindex", 2**63 - 1),
        (f"{2**63}.index", -1),
        ("-1.index", -1),
        ("7", -1),
        ("leader-epoch-checkpoint", -1),
    ],
)
def test_the_offset_of_a_name_is_the_number_before_its_first_dot(name, offset):
    assert leading_offset(name) == offset


def test_partitions_are_sorted_by_topic_and_then_by_number():
    assert sorted(["t-10", "t-2", "s-11", "t-1"], key=by_number) == ["s-11", "t-1", "t-2", "t-10"]
    assert sorted(["t-2-0", "t-10-0", "t-11", "t-3"], key=by_number) == ["t-3", "t-11", "t-2-0", "t-10-0"]


def test_numbers_within_names_are_sorted_as_numbers():
    names = ["g", "g2", "g2-0", "g2-1", "g2.eu10", "g10", "g10-0", "h"]
    backwards = names[::-1]
    assert sorted(backwards, key=by_number) == names
    assert sorted(["v2.g10-0", "v10.g2-0", "v2.g9-1"], key=by_number) == ["v2.g9-1", "v2.g10-0", "v10.g2-0"]


def test_names_are_sorted_the_same_way_from_any_order():
    nines = "9" * 5000
    odd = ["t-", "nothing", "t-\u00b2", f"t-{nines}", nines, f"{nines}-0", "", "t-00", "t-0", "g02", "g2"]
    backwards = odd[::-1]
    assert sorted(odd, key=by_number) == sorted(backwards, key=by_number)


def test_the_directory_of_a_future_log_has_the_whole_name_of_its_topic() -> None:
    partition = TopicPartition("a" * 249, 3)
    name = future_directory_name(partition, UUID)
    assert name == f"{partition}.{UUID}-future"
    assert parse_partition_directory(name) == (partition, DirectoryState.FUTURE)


def test_a_name_that_becomes_too_long_is_shortened_and_stays_unique():
    assert with_suffix("t-0", ".run-1.part") == "t-0.run-1.part"
    longest = "t" * 249 + "-10"
    assert with_suffix(longest, ".12") == longest + ".12", "255 bytes"
    names = [with_suffix("t" * 249 + f"-{number}", ".run-1.part") for number in range(10, 20)]
    assert {len(name) for name in names} == {255} and len(set(names)) == 10
    assert all(name.endswith(".run-1.part") and "~" in name for name in names)
    assert len(with_suffix("\u00e9" * 200, ".x").encode()) <= 255
    assert len(with_suffix("\udcff" * 300, ".x").encode(errors="surrogateescape")) <= 255
