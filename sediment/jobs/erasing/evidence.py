"""Evidence of an erasure: a JSON document in a signed envelope, and a page for people next to it.

    kind, schema, sediment, run_id, now_ms, finished_ms
    subjects          by (keys, condition, verdicts), algorithm, hmacs: HMAC-SHA256 of each under the caller's secret
    complete          true if nothing is in `incomplete`
    incomplete        reasons: a partition that failed, a record that still matches, a replica or place not reached
    log_dirs          path, cluster_id, node_id, directory_id
    partitions        one for each selected partition; see `PartitionEvidence`
    not_reached       places besides the segments: kind, path, advice

For a table of verdicts, the only subject is the text of all its rows, as `topic-partition:offset` lines, ascending.

The document describes only what this run did and read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.erasing.erasure import FileDigest
from sediment.jobs.erasing.places import Place
from sediment.jobs.erasing.report import ERASED, RecordsNotReached
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.html_template import render_template
from sediment.jobs.rewriting.report import UNCHANGED
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.dates import date_text
from sediment.segment_io.fs import Fs
from sediment.segment_io.printable import encodable
from sediment.version import __version__

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

KIND = "erasure"
SCHEMA = 1
ALGORITHM = "HMAC-SHA256"
DONE = frozenset({ERASED, UNCHANGED})
"""Statuses of a partition in which each verdict was either carried out or is listed as not reached."""


@dataclass(frozen=True, slots=True)
class SegmentEvidence:
    """A segment that exists after the run, or a segment that was replaced by segments with other base offsets.

    `removed` counts the records that were dropped, turned into tombstones or replaced.  `before` lists the original
    files of a rewritten segment, and is empty for other segments; `after` lists the files after the run.  `records` and
    `matches` are counts of the second scan.
    """

    base_offset: int
    rewritten: bool
    removed: int
    before: tuple[FileDigest, ...]
    after: tuple[FileDigest, ...]
    records: int
    matches: int


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """One partition: the counts of the run and of the second scan, and its segments, ascending.

    `replicas` are the node ids in the metadata log, or None without a metadata log; `covered` are the nodes in whose
    directories this run erased records.
    """

    log_dir: str
    partition: str
    status: str
    reason: str | None
    action: str | None
    scanned: int | None
    matched: int
    removed: int
    not_reached: tuple[RecordsNotReached, ...]
    records_after: int
    matches_after: int
    replicas: tuple[int, ...] | None
    covered: tuple[int, ...]
    segments: tuple[SegmentEvidence, ...]


@dataclass(frozen=True, slots=True)
class Subjects:
    by: str
    hmacs: tuple[str, ...]
    algorithm: str = ALGORITHM


def why_incomplete(partitions: Sequence[PartitionEvidence], places: Iterable[Place]) -> list[str]:
    reasons = []
    if not partitions:
        reasons.append("no partition is covered")
    for each in partitions:
        where = f"{each.partition} in {each.log_dir}"
        if each.status not in DONE:
            reasons.append(f"{where} is {each.status}")
        if each.matches_after:
            reasons.append(f"{where} still has {counted(each.matches_after, 'matching record')}")
        for stays in each.not_reached:
            reasons.append(f"{where} has {counted(stays.records, 'record')} out of reach: {stays.reason_code}")
        if each.replicas is None:
            reasons.append(f"the replicas of {where} are not known")
        elif set(each.replicas) - set(each.covered):
            others = ", ".join(map(str, sorted(set(each.replicas) - set(each.covered))))
            reasons.append(f"{where} has replicas that this run did not cover, on brokers: {others}")
    reasons += [f"{place.path} was not reached" for place in places if place.path is not None]
    return reasons


def document_of(
    *,
    run_id: str,
    now_ms: int,
    finished_ms: int,
    subjects: Subjects,
    directories: Iterable[SelectedDirectory],
    partitions: Sequence[PartitionEvidence],
    found: Sequence[Place],
    not_visible: Sequence[Place],
) -> dict[str, Any]:
    """Return the document; places in `found` make the evidence incomplete, but places in `not_visible` do not."""
    incomplete = why_incomplete(partitions, found)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "sediment": __version__,
        "run_id": run_id,
        "now_ms": now_ms,
        "finished_ms": finished_ms,
        "subjects": asdict(subjects),
        "complete": not incomplete,
        "incomplete": incomplete,
        "log_dirs": [
            {
                "path": str(directory.path),
                "cluster_id": directory.meta.cluster_id if directory.meta else None,
                "node_id": directory.meta.node_id if directory.meta else None,
                "directory_id": directory.meta.directory_id if directory.meta else None,
            }
            for directory in directories
        ],
        "partitions": [asdict(each) for each in partitions],
        "not_reached": [asdict(place) for place in (*found, *not_visible)],
    }


def hmac_of_rows(secret: bytes, rows: Mapping[str, Iterable[int]]) -> str:
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for partition, offsets in sorted(rows.items()):
        for offset in sorted(offsets):
            digest.update(f"{partition}:{offset}\n".encode())
    return digest.hexdigest()


def write_evidence(file: Path, document: dict[str, Any], signer: CryptoSigner, fs: Fs) -> None:
    """Write the signed document to `file`, and the page for people next to it; replace each file atomically."""
    from sediment.jobs.erasing.envelope import signed

    fs.replace_file(file, signed(document, signer))
    fs.replace_file(page_file(file), render_evidence(document, file.name).encode())


def page_file(evidence: Path) -> Path:
    return evidence.with_suffix(".html")


def render_evidence(document: Mapping[str, Any], file: str) -> str:
    finished = date_text(document["finished_ms"])
    return encodable(render_template("evidence.html", document=document, file=file, finished=finished))
