"""Writes sediment/jobs/demo.tar.xz: the directory of `sediment demo`, from cases of the corpus.

    .venv/bin/python -m tests.demo

A metadata log holds each topic's config, so every command of the documentation works on the directory as on that of a
stopped broker.  The topics get new ids each time; a test compares all else with the corpus.
"""

from __future__ import annotations

import json
import logging
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import sediment
from sediment import records
from sediment.jobs.demo import ARCHIVE, LOG_DIR
from sediment.segment_io.format.names import BOOTSTRAP_FILE, METADATA_PARTITION
from tests.archives import unpack
from tests.segments import write_segment

CASES = ("plain", "zstd", "tombstones", "transactions", "idempotent", "headers", "mixed-codecs", "everything")
CORPUS = Path(__file__).parent / "data" / "corpus" / "cleaning"
WRITTEN_S = 1_793_491_200  # as the files of the corpus: 2026-11-01


def make_log_dir(log_dir: Path) -> None:
    log_dir.mkdir(parents=True)
    settings: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as unpacked:
        for case in CASES:
            settings |= place(case, log_dir, Path(unpacked))
    sediment.LogDirectories(log_dir, settings=settings).adopt().raise_for_status()
    write_metadata_log(log_dir)
    # keeps the records of an adopted directory; the demo cleans them
    (log_dir / "server.properties").unlink()


def write_metadata_log(log_dir: Path) -> None:
    """Write the records of `bootstrap.checkpoint` into a metadata log, as the controller does at its first start."""
    found = list(records.read_records((log_dir / BOOTSTRAP_FILE).read_bytes()))
    batch = records.build_batch(found, leader_epoch=1)
    write_segment(log_dir / str(METADATA_PARTITION), 0, [batch], mtime_ms=found[-1].timestamp_ms)


def place(case: str, log_dir: Path, unpacked: Path) -> Mapping[str, str]:
    """Put the partition of a case into `log_dir`; return the configs of its topic as settings.

    Its segments are smaller than a broker of Kafka 4 lets a topic ask for, except by the internal config.
    """
    with tarfile.open(CORPUS / f"{case}.tar.xz") as archive:
        unpack(archive, unpacked)
    about = json.loads((unpacked / case / "case.json").read_text())
    partition = about["partition"]
    (unpacked / case / "before").rename(log_dir / partition)
    topic = partition.rpartition("-")[0]
    internal = {"segment.bytes": "internal.segment.bytes"}
    return {f"{topic}:{internal.get(key, key)}": value for key, value in about["configs"].items()}


def pack(log_dir: Path, archive: Path) -> None:
    """Pack a log directory under the name of the demo's, without owner and time of this machine."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name == f"{LOG_DIR}/.lock":
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = WRITTEN_S
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(log_dir, LOG_DIR, filter=plain)


def main() -> None:
    logging.getLogger("sediment").setLevel(logging.ERROR)  # the small segments of the partitions are intended
    with tempfile.TemporaryDirectory() as folder:
        log_dir = Path(folder) / LOG_DIR
        make_log_dir(log_dir)
        pack(log_dir, ARCHIVE)


if __name__ == "__main__":
    main()
