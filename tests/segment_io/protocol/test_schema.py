from __future__ import annotations

import keyword

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.compiler import is_structure
from sediment.segment_io.protocol.message import Message
from sediment.segment_io.protocol.schema import (
    LAST_VERSION,
    NO_VERSIONS,
    VersionRange,
    message_lines,
    message_schema,
    parse_versions,
    snake_case,
)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("0-3", VersionRange(0, 3)),
        ("7", VersionRange(7, 7)),
        ("4+", VersionRange(4, LAST_VERSION)),
        ("none", NO_VERSIONS),
    ],
)
def test_versions_are_a_range_a_single_one_an_open_end_or_none(text, versions):
    assert parse_versions(text) == versions
    assert text in (str(versions), "none")


def test_a_range_holds_both_of_its_ends():
    versions = parse_versions("2-4")
    assert list(versions) == [2, 3, 4]
    assert [version in versions for version in (1, 2, 4, 5)] == [False, True, True, False]
    assert 0 not in NO_VERSIONS
    assert not list(NO_VERSIONS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("maxWaitMs", "max_wait_ms"),
        ("topicId", "topic_id"),
        ("key", "key"),
        ("clusterIDs", "cluster_i_ds"),
        ("OffsetCommit", "offset_commit"),
    ],
)
def test_names_become_snake_case(name, expected):
    assert snake_case(name) == expected


def test_a_message_line_says_all_but_the_fields():
    line = message_lines()["FetchRequest"]
    assert (line.component, line.kind, line.number) == ("clients", "request", 1)
    assert (line.versions, line.flexible_versions) == (VersionRange(4, 18), VersionRange(12, LAST_VERSION))
    assert (line.listeners, line.latest_version_unstable) == (("broker", "controller"), False)
    assert message_lines()["InitProducerIdRequest"].latest_version_unstable
    assert message_lines()["ResponseHeader"].number is None


def test_a_field_has_what_its_line_says():
    fields = {field.name: field for field in message_schema("FetchRequest").fields}
    cluster_id = fields["clusterId"]
    assert (cluster_id.type, cluster_id.is_array, cluster_id.default) == ("string", False, "null")
    assert (cluster_id.tag, cluster_id.tagged_versions) == (0, parse_versions("12+"))
    assert (cluster_id.nullable_versions, cluster_id.ignorable) == (parse_versions("12+"), True)
    assert (fields["topics"].type, fields["topics"].is_array, fields["topics"].tag) == ("FetchTopic", True, None)
    assert not fields["replicaId"].ignorable
    assert message_schema("RequestHeader").fields[-1].never_flexible


def test_structures_are_found_at_every_depth_and_in_common():
    assert set(message_schema("FetchRequest").structures) == {
        "ReplicaState",
        "FetchTopic",
        "FetchPartition",
        "ForgottenTopic",
    }
    common = message_schema("ConsumerGroupDescribeResponse").structures
    assert [field.name for field in common["Assignment"]] == ["topicPartitions"]
    assert len(common["TopicPartitions"]) == 3


def test_an_unknown_message_has_no_schema():
    with pytest.raises(KeyError):
        message_schema("FetchRequests")
    with pytest.raises(KeyError):
        message_schema("fetch")


@pytest.mark.parametrize("name", sorted(message_lines()))
def test_every_type_is_known_and_every_name_can_be_an_attribute(name):
    schema = message_schema(name)
    primitives = {"bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "uuid"}
    for fields in (schema.fields, *schema.structures.values()):
        names = [field.attribute for field in fields]
        assert len(set(names)) == len(names)
        assert not any(keyword.iskeyword(found) or hasattr(Message, found) for found in names)
        for field in fields:
            known = schema.structures if is_structure(field) else primitives | {"string", "bytes", "records"}
            assert field.type in known
            # Records in an array or in a tagged field would need chunks inside a size that comes before them.
            assert field.type != "records" or (not field.is_array and field.tag is None)


def test_messages_are_listed_and_made_when_they_are_asked_for():
    assert {"FetchRequest", "OffsetCommitValue", "TopicRecord"} <= set(dir(m))
    assert m.FetchRequest is m.FetchRequest
    with pytest.raises(AttributeError, match="FetchRequests"):
        _ = m.FetchRequests
