"""What an erasure writes for others: the subjects of its evidence, and the keys that got tombstones."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.compaction.rewrite.verdicts import Action
from sediment.jobs.erasing.after_run import ErasedPartition
from sediment.jobs.erasing.evidence import Subjects, hmac_of_rows
from sediment.jobs.erasing.find_records import KeysAt, ScanRun, around
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.erasing.selector import Subject
from sediment.jobs.erasing.subjects import Condition, Keys, read_secret, write_private
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.rewriting.result import CleaningResult
from sediment.segment_io.errors import StorageError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    file: Path
    secret: bytes
    signer: CryptoSigner

    @classmethod
    def load(cls, own: EraseOptions) -> Proof:
        """Read the secret and the key before anything changes."""
        from sediment.jobs.erasing.envelope import load_signer

        assert own.evidence is not None and own.secret_file is not None and own.signing_key is not None
        return cls(own.evidence, read_secret(own.secret_file), load_signer(own.signing_key))

    def subjects(self, subject: Subject) -> Subjects:
        if isinstance(subject, Keys):
            return Subjects("keys", subject.hmacs(self.secret))
        if isinstance(subject, Condition):
            return Subjects("condition", subject.hmacs(self.secret))
        rows = {str(partition): [row.offset for row in given] for partition, given in subject.items()}
        return Subjects("verdicts", (hmac_of_rows(self.secret, rows),))


def write_tombstones(file: Path, erased: Sequence[ErasedPartition], scans: ScanRun, output: str | None) -> None:
    offsets = {
        each.listing.path: verdicts.offsets[verdicts.actions == Action.TOMBSTONE]
        for each in erased
        for verdicts in [each.verdicts]
    }
    bounds = {path: around(found) for path, found in offsets.items()}
    lines: list[bytes] = []
    listings = [each.listing for each in erased if offsets[each.listing.path].size]
    for listing, found in scans.scan(listings, KeysAt(offsets), bounds=bounds, with_keys=True):
        if isinstance(found, CleaningResult):
            raise StorageError(
                f"the keys with tombstones cannot be read back: {found.reason}",
                partition=str(listing.partition),
                advice="the records are erased; run again to write --tombstones-out",
            )
        for key in sorted({key for key in found.keys if key is not None}):
            row = {
                "topic": listing.partition.topic,
                "partition": listing.partition.partition,
                "key": base64.b64encode(key).decode(),
            }
            lines.append(json.dumps(row).encode() + b"\n")
    with named_if_not_written("--tombstones-out", output):
        write_private(file, lines)


@contextmanager
def named_if_not_written(what: str, output: str | None) -> Iterator[None]:
    """If `what` cannot be written inside the block, raise the error with a note that the records are erased."""
    try:
        yield
    except OSError as error:
        text = describe(error)[1]
        again = "run again" if output is None else "remove the output and run again"
        raise StorageError(
            f"the records are erased, but {what} could not be written: {text}", advice=f"{again} to write it"
        ) from error
