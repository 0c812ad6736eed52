"""Copies as sources: reading the manifest of a complete copy."""

from __future__ import annotations

from sediment.segment_io.errors import UsageError
from sediment.segment_io.manifest import MANIFEST_FILE, Manifest, parse_manifest
from sediment.segment_io.stores import Store


def read_copy_manifest(copy: Store) -> Manifest:
    """Return the manifest of a complete copy.

    Raises:
        UsageError: the directory has no manifest, so it is not a complete copy.
        CorruptDataError: the manifest cannot be read.
    """
    document = copy.read(MANIFEST_FILE)
    if document is None:
        raise UsageError(
            f"the directory has no {MANIFEST_FILE}, so it is not a complete copy",
            path=str(copy),
            advice="give a complete copy, or make the copy again",
        )
    return parse_manifest(document, path=str(copy))
