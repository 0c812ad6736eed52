import pytest

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.checkpoints import (
    format_offset_checkpoint,
    format_partition_metadata,
    format_uuid,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
    parse_uuid,
)
from sediment.segment_io.format.names import TopicPartition

A0, BC3, T0, X1 = (TopicPartition(*pair) for pair in (("a", 0), ("b-c", 3), ("t", 0), ("x", 1)))
TOPIC_ID = "oUEtv2cKRSmDdBgjA0X1_A"


# ------------------------------------------------------------------------------------------------ offset checkpoints


def test_ix_22_an_offset_checkpoint_parses():
    assert parse_offset_checkpoint(b"0\n2\na 0 5\nb-c 3 7\n") == {A0: 5, BC3: 7}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1\n2\na 0 5\nb-c 3 7\n", "version 1, not 0"),
        (b"0\n3\na 0 5\nb-c 3 7\n", "announces 3 entries but contains 2"),
        (b"0\n1\na 0 5\nb-c 3 7\n", "announces 1 entries but contains 2"),
        (b"0\n1\na 0\n", "line 'a 0' is malformed"),
        (b"0\n1\na 0 5 6\n", "is malformed"),
        (b"0\n1\n a 0 5\n", "is malformed"),
        (b"0\n1\n\n", "line '' is malformed"),
        (b"0\n1\na x 5\n", "is malformed"),
        (b"0\n1\na 0 1_0\n", "is malformed"),
        (b"0\n1\na 2147483648 5\n", "is malformed"),
        (b"0\n1\na 0 9223372036854775808\n", "is malformed"),
        (b"zero\n1\na 0 5\n", "line 'zero' is not a number"),
        (b"0\nmany\na 0 5\n", "line 'many' is not a number"),
        (b"\n", "line '' is not a number"),
        (b"0\n1\n\xff 0 5\n", "not UTF-8"),
    ],
)
def test_ix_22_a_malformed_offset_checkpoint_is_corrupt(content, reason):
    with pytest.raises(CorruptCheckpointError, match=reason) as caught:
        parse_offset_checkpoint(content, path="cleaner-offset-checkpoint")
    assert caught.value.path == "cleaner-offset-checkpoint"


@pytest.mark.parametrize("content", [b"", b"0", b"0\n", b"0\n0\n"])
def test_ix_22_a_checkpoint_without_entries_is_empty(content):
    assert parse_offset_checkpoint(content) == {}


def test_a_checkpoint_reads_as_java_reads_lines_and_fields():
    assert parse_offset_checkpoint(b"0\r\n2\r\na\t0  5 \r\nb-c 3 +7") == {A0: 5, BC3: 7}
    assert parse_offset_checkpoint(b"0\n2\na 0 5\na 0 9\n") == {A0: 9}


def test_offset_checkpoints_keep_their_order():
    assert format_offset_checkpoint({X1: 2, A0: 1}) == b"0\n2\nx 1 2\na 0 1\n"


# ----------------------------------------------------------------------------------------------------- leader epochs


@pytest.mark.parametrize("content", [b"0\n1\n0\n", b"0\n1\n0 0 0\n", b"0\n2\n0 0\n", b"7\n1\n0 0\n", b"0\n1\na 0\n"])
def test_malformed_leader_epochs_are_corrupt(content):
    with pytest.raises(CorruptCheckpointError):
        parse_leader_epochs(content)


# ------------------------------------------------------------------------------------------------ partition.metadata


def test_ix_24_higher_versions_of_partition_metadata_are_accepted():
    assert parse_partition_metadata(f"version: 1\ntopic_id: {TOPIC_ID}\n".encode()) == TOPIC_ID
    assert format_partition_metadata(TOPIC_ID).startswith(b"version: 0\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "all-zero"),
        (f"version:0\ntopic_id: {TOPIC_ID}", "needs the lines"),
        (f"version: 0\ntopic_id {TOPIC_ID}", "needs the lines"),
        ("version: 0\n", "needs the lines"),
        ("", "has 0 bytes"),
        (f"version: -1\ntopic_id: {TOPIC_ID}", "malformed value: -1"),
        (f"version: x\ntopic_id: {TOPIC_ID}", "malformed value: x"),
        (f"version: 0\ntopic_id: {TOPIC_ID}A", "malformed value"),
        (f"version: 0\ntopic_id: {TOPIC_ID[:-1]}+", "malformed value"),
    ],
)
def test_ix_24_malformed_partition_metadata_is_corrupt(content, reason):
    with pytest.raises(CorruptCheckpointError, match=reason):
        parse_partition_metadata(content.encode(), path="partition.metadata")


def test_ids_are_16_bytes_as_22_characters():
    raw = bytes(range(16))
    assert format_uuid(raw) == "AAECAwQFBgcICQoLDA0ODw"
    assert parse_uuid("AAECAwQFBgcICQoLDA0ODw") == raw
    assert parse_uuid("AAECAwQFBgcICQoLDA0ODw==") == raw
    with pytest.raises(ValueError, match=r"no.* id"):
        parse_uuid("AAECAwQFBgcICQoLDA0OD")
