from __future__ import annotations

import pickle
import random
import subprocess
import sys
from dataclasses import dataclass
from uuid import UUID

import pytest

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.schema import VersionRange
from tests.segment_io.protocol.random_messages import random_messages

TOPIC_ID = UUID(int=7)


@dataclass(frozen=True)
class Slice:
    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self) -> bytes:
        return self.content


# ------------------------------------------------------------------------------------------------------------- classes
def test_a_new_message_has_the_defaults_of_kafka():
    request = m.FetchRequest()
    assert (request.replica_id, request.max_bytes, request.cluster_id, request.rack_id) == (-1, 0x7FFFFFFF, None, "")
    assert (request.topics, request.replica_state) == ((), m.FetchRequest.ReplicaState())
    assert m.FetchRequest.FetchPartition().replica_directory_id == UUID(int=0)
    assert m.RegisterBrokerRecord().fenced is True


def test_a_class_says_its_api_versions_and_flexible_versions():
    assert (1, VersionRange(4, 18)) == (m.FetchRequest.API_KEY, m.FetchRequest.VERSIONS)
    assert [m.FetchRequest.is_flexible(version) for version in (4, 11, 12, 18)] == [False, False, True, True]
    assert (m.ResponseHeader.API_KEY, m.TopicRecord.API_KEY, m.OffsetCommitValue.API_KEY) == (-1, 2, 1)


def test_messages_are_equal_if_their_fields_are():
    one, other = (m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="a")]) for _ in range(2))
    assert one == other
    other.topics[0].name = "b"
    assert one != other
    assert one != m.MetadataRequest.MetadataRequestTopic(name="a")
    assert m.MetadataRequest(topics=[]) == m.MetadataRequest(topics=())
    assert m.MetadataRequest(topics=[]) != m.MetadataRequest(topics=None)


def test_only_fields_can_be_given_and_set():
    with pytest.raises(TypeError):
        m.FetchRequest(topic="a")
    with pytest.raises(TypeError):
        m.FetchRequest("a")
    with pytest.raises(AttributeError):
        m.FetchRequest().topic = "a"


def test_a_printed_message_shows_no_content_of_records_or_bytes():
    data = m.FetchResponse.PartitionData(records=b"secret")
    assert "records=<6 bytes>" in repr(data)
    assert "secret" not in repr(m.SaslAuthenticateRequest(auth_bytes=b"secret"))
    assert repr(data).startswith("FetchResponse.PartitionData(partition_index=0, ")


def test_a_message_can_be_pickled():
    request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="a")])
    assert pickle.loads(pickle.dumps(request)) == request


def test_importing_messages_compiles_none_and_brings_no_large_module():
    code = (
        "import sys, tracemalloc; tracemalloc.start(); from sediment.segment_io.protocol import messages, headers; "
        "assert not any(name in sys.modules for name in ('numpy', 'numba', 'asyncio')); "
        "assert not [name for name in vars(messages) if name.endswith('Request')]; "
        "assert tracemalloc.get_traced_memory()[1] < 8 << 20, tracemalloc.get_traced_memory()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------------------------------------------- whole trips
def test_every_message_in_every_version_is_decoded_as_it_was_encoded():
    for name, version, message in random_messages(random.Random(1), 3):
        assert getattr(m, name).decode(message.to_bytes(version), version) == message, (name, version)


def test_a_view_of_a_larger_buffer_is_decoded_like_bytes():
    for name, version, message in random_messages(random.Random(2), 1):
        content = message.to_bytes(version)
        view = memoryview(bytearray(b"before" + content + b"after"))[6 : 6 + len(content)]
        assert getattr(m, name).decode(view, version) == message, (name, version)


# ------------------------------------------------------------------------------------------------------------- records
def test_decoded_records_are_a_view_of_the_frame():
    topic = m.ProduceRequest.TopicProduceData(
        name="a", partition_data=[m.ProduceRequest.PartitionProduceData(index=3, records=b"batches")]
    )
    frame = bytearray(m.ProduceRequest(topic_data=[topic]).to_bytes(9))
    records = m.ProduceRequest.decode(memoryview(frame), 9).topic_data[0].partition_data[0].records
    assert (type(records), bytes(records)) == (memoryview, b"batches")
    frame[frame.index(b"batches")] = ord("B")
    assert bytes(records) == b"Batches"


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_records_of_a_response_are_chunks_of_their_own(version):
    given = [Slice(b"slice" * 100), memoryview(b"view"), b"bytes", b"", None]
    partitions = [m.FetchResponse.PartitionData(partition_index=i, records=one) for i, one in enumerate(given)]
    responses = [
        m.FetchResponse.FetchableTopicResponse(
            topic="a" if version < 13 else "", topic_id=TOPIC_ID if version > 12 else UUID(int=0), partitions=partitions
        )
    ]
    response = m.FetchResponse(responses=responses)
    chunks = response.encode(version)
    assert [chunk for chunk in chunks if any(chunk is one for one in given)] == given[:3]
    assert len(chunks) == 7
    decoded = m.FetchResponse.decode(response.to_bytes(version), version).responses[0].partitions
    contents = [None if one.records is None else bytes(one.records) for one in decoded]
    assert contents == [b"slice" * 100, b"view", b"bytes", b"", None]


def test_a_response_that_ends_with_records_has_no_empty_chunk():
    response = m.FetchSnapshotResponse()
    assert all(len(chunk) for chunk in response.encode(0))
    assert m.DescribeQuorumRequest().encode(0) == [b"\1\0"]


# -------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("name", "version", "frame", "words"),
    [
        ("HeartbeatResponse", 0, b"\0\0!", "1 bytes are left over"),
        ("HeartbeatRequest", 0, b"\0\1g\0\0\0\1\0\2m", "2 bytes are announced, but 1 are left"),
        ("HeartbeatRequest", 0, b"\0\1g\0\0\0\1\xff\xff", "memberId is null"),
        ("HeartbeatRequest", 0, b"\0\1g\0\0\0\1\0\1\xff", "utf-8"),
        ("HeartbeatRequest", 0, b"\0\1g\0\0\0\1\0\3\xed\xa0\x80", "utf-8"),
        ("HeartbeatRequest", 0, b"\0\1g\0\0", "unpack"),
        ("HeartbeatRequest", 4, b"\2g\0\0\0\1\0\0\0", "memberId is null"),
        ("HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0", "range"),
        ("HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\1", "range"),
        ("HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\1\x09\5ab", "longer than its message"),
        ("HeartbeatRequest", 4, b"\x81\x80\x80\x80\x80\x80\0", "longer than five bytes"),
        ("HeartbeatRequest", 4, b"\xff\xff\xff\xff\x0f", "above 2147483647"),
        ("HeartbeatRequest", 4, b"\x81\x80\x02" + bytes(40000), "more than 32767"),
        ("MetadataRequest", 0, b"\xff\xff\xff\xff", "topics is null"),
        ("MetadataRequest", 0, b"\x7f\xff\xff\xff\0\1a", "2147483647 elements are announced, but 3 bytes are left"),
        ("MetadataRequest", 0, b"\0\0\0\2\0\1a", "2 elements are announced, but 3 bytes are left"),
        ("FetchRequest", 12, b"", "unpack"),
        ("EndTxnMarker", 0, b"\0\0\0", "unpack"),
        ("PartitionRecord", 1, m.PartitionRecord().to_bytes(1)[:-1] + b"\1\1\1\0", "tag 1 is not valid"),
        ("PartitionRecord", 2, m.PartitionRecord().to_bytes(2)[:-1] + b"\1\1\2\1", "longer than its message"),
        (
            "PartitionRecord",
            2,
            m.PartitionRecord().to_bytes(2)[:-1] + b"\1\1\2\1\0",
            "does not have its announced size",
        ),
        ("AlterPartitionRequest", 2, b"\0\0\0\1\0\0\0\0\0\0\0\0\xff\xff\xff\xff\7\0", "elements are announced"),
    ],
)
def test_a_malformed_message_is_an_error_with_api_version_and_position(name, version, frame, words):
    with pytest.raises(ProtocolError, match=words) as raised:
        getattr(m, name).decode(frame, version)
    error = raised.value
    assert (error.api, error.version) == (name, version)
    assert error.position is not None and 0 <= error.position <= len(frame)
    assert f"{name} version {version}" in str(error)
    assert error.reason_code == "protocol"


@pytest.mark.parametrize("version", [-1, 3, 19, 32767])
def test_a_version_that_does_not_exist_is_an_error_both_ways(version):
    with pytest.raises(ProtocolError, match=f"FetchRequest has no version {version}; it has 4-18"):
        m.FetchRequest.decode(b"", version)
    with pytest.raises(ProtocolError, match="has no version"):
        m.FetchRequest().encode(version)


def test_unknown_tagged_fields_are_left_out():
    frame = m.HeartbeatRequest(group_id="g").to_bytes(4)[:-1] + b"\2" + b"\5\3abc" + b"\x80\1\0"
    assert m.HeartbeatRequest.decode(frame, 4) == m.HeartbeatRequest(group_id="g")


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (m.HeartbeatRequest(group_instance_id="i"), 2),
        (m.HeartbeatRequest(member_id=None), 4),
        (m.HeartbeatRequest(member_id=None), 0),
        (m.HeartbeatRequest(member_id=b"m"), 0),
        (m.HeartbeatRequest(member_id="\ud800"), 0),
        (m.HeartbeatRequest(member_id="m" * 32768), 0),
        (m.HeartbeatRequest(member_id="m" * 32768), 4),
        (m.HeartbeatRequest(generation_id=1 << 31), 4),
        (m.HeartbeatRequest(generation_id="1"), 4),
        (m.HeartbeatResponse(error_code=1.5), 0),
        (m.MetadataRequest(topics=None), 0),
        (m.MetadataRequest(topics=5), 0),
        (m.MetadataRequest(topics=["a"]), 0),
        (m.SyncGroupResponse(assignment=None), 0),
        (m.SyncGroupResponse(assignment=7), 0),
        (m.FetchRequest(replica_state=None), 15),
        (m.TopicRecord(topic_id=b"7" * 16), 0),
        (m.FetchSnapshotResponse(topics=[m.FetchSnapshotResponse.TopicSnapshot(partitions=[None])]), 0),
    ],
)
def test_a_value_that_does_not_fit_its_field_or_version_is_an_error(message, version):
    with pytest.raises(ProtocolError, match="cannot be encoded") as raised:
        message.encode(version)
    assert (raised.value.api, raised.value.version) == (type(message).__name__, version)


def test_a_field_that_is_ignorable_is_dropped_where_the_version_lacks_it():
    response = m.HeartbeatResponse(throttle_time_ms=5, error_code=3)
    assert response.to_bytes(0) == b"\0\3"
    assert response.to_bytes(1) == b"\0\0\0\5\0\3"
