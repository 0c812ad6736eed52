"""A manifest is read as it was written, and no name in it leads out of the copies."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.fs import FileStamp
from sediment.segment_io.manifest import Manifest, ManifestFile, ManifestPartition, format_manifest, parse_manifest

_NAMES = st.from_regex(r"[a-z]{1,5}-[0-9]/[0-9]{3}\.log", fullmatch=True)
_SIZES = st.integers(0, 2**63 - 1)
_TIMES = st.integers(-(2**63), 2**63 - 1)
_STAMPS = st.builds(FileStamp, _SIZES, _TIMES, st.none() | st.integers(0, 2**64 - 1), st.none() | _TIMES)
_FILES = st.builds(
    ManifestFile,
    _NAMES,
    _SIZES,
    st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.none() | st.sampled_from(["../day-1", "../a b", "../..x"]),
    st.none() | _STAMPS,
)
_OFFSETS = st.none() | _SIZES
_TEXTS = st.none() | st.text(max_size=5)
_PARTITIONS = st.builds(ManifestPartition, st.just("t-0"), _TEXTS, _OFFSETS, _OFFSETS, _OFFSETS, _TEXTS)
_MANIFESTS = st.builds(
    Manifest,
    st.text(max_size=5),
    _SIZES,
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
    st.lists(_FILES, max_size=3).map(tuple),
    st.lists(_PARTITIONS, max_size=3).map(tuple),
)


def parsed(document: object) -> Manifest:
    return parse_manifest(json.dumps(document).encode(), path="copy")


@given(_MANIFESTS)
@settings(max_examples=100)
def test_it_is_read_as_it_was_written(manifest):
    assert parse_manifest(b"".join(format_manifest(manifest)), path="copy") == manifest


def test_a_document_of_many_files_is_written_in_pieces():
    files = tuple(ManifestFile(f"t-0/{number}", number, None) for number in range(25_000))
    pieces = list(format_manifest(Manifest("run", 7, (), files)))
    assert max(map(len, pieces)) < sum(map(len, pieces)) / 2
    assert parse_manifest(b"".join(pieces), path="copy").files == files


def test_outputs_of_earlier_versions_are_read():
    digest = "0" * 64
    row = {"name": "t-0/x", "size_bytes": 3, "sha256": digest}
    manifest = parsed({"schema": 1, "run_id": "r", "now_ms": 1, "sources": ["/logs"], "files": [row]})
    assert manifest == Manifest("r", 1, ("/logs",), (ManifestFile("t-0/x", 3, digest),))


@pytest.mark.parametrize("name", ["", "..", "../x", "t-0/../x", "/etc/passwd", "t-0//x", "./x", "x\0", 7, None])
def test_a_name_that_leads_elsewhere_is_refused(name):
    row = {"name": name, "size_bytes": 3, "sha256": None}
    with pytest.raises(CorruptDataError, match="cannot be read"):
        parsed({"schema": 1, "run_id": "r", "now_ms": 1, "sources": [], "files": [row]})


@pytest.mark.parametrize("held_in", ["..", "../..", "../.", "../a/b", "/a", "a", "../", "../a\0", 7])
def test_a_holder_that_is_not_beside_the_copy_is_refused(held_in):
    row = {"name": "x", "size_bytes": 3, "sha256": None, "held_in": held_in}
    with pytest.raises(CorruptDataError, match="cannot be read"):
        parsed({"schema": 1, "run_id": "r", "now_ms": 1, "sources": [], "files": [row]})


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b'{"schema": 2}', b"\xff", b"[" * 100_000])
def test_another_document_is_refused(document):
    with pytest.raises(CorruptDataError, match="cannot be read"):
        parse_manifest(document, path="copy")
