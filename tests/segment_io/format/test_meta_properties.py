import pytest

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.meta_properties import MetaProperties, parse_meta_properties


def test_meta_properties_without_a_version_are_version_0():
    assert parse_meta_properties(b"broker.id=5\nnode.id=7\n") == MetaProperties(0, None, 5, None)
    assert parse_meta_properties(b"cluster.id : caf\xe9\\u0021\n").cluster_id == "caf\u00e9!"


@pytest.mark.parametrize(("content", "what"), [(b"", "has 0 bytes"), (b"#\n", "2 bytes without a property")])
def test_a_file_that_a_power_loss_emptied_is_corrupt(content, what):
    with pytest.raises(CorruptCheckpointError, match=what):
        parse_meta_properties(content)


@pytest.mark.parametrize(
    "content",
    [b"version=2\nnode.id=1\ncluster.id=a\n", b"version=x\n", b"broker.id=one\n", b"directory.id=short\n", b"a=\\u00"],
)
def test_malformed_meta_properties_are_corrupt(content):
    with pytest.raises(CorruptCheckpointError, match=r"meta\.properties contains"):
        parse_meta_properties(content)
