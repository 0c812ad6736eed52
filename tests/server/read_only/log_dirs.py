"""Log directories for tests of what is only read, and fingerprints that show whether anything in them changed."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from pathlib import Path

from sediment.segment_io.format.checkpoints import format_uuid
from tests.archives import unpack
from tests.segments import batch_bytes, write_segment

KRAFT = Path(__file__).parents[2] / "data" / "kraft"


def write_checkpoint(path: Path, offsets: Mapping[str, int]) -> None:
    lines = [f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {offset}" for name, offset in offsets.items()]
    path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def write_epochs(directory: Path, *entries: tuple[int, int]) -> None:
    lines = [f"{epoch} {offset}" for epoch, offset in entries]
    (directory / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def write_meta(directory: Path, *, cluster_id: str = "cluster-of-tests-00000", node_id: int = 1) -> None:
    text = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={format_uuid(bytes(range(1, 17)))}\n"
    (directory / "meta.properties").write_text(text)


def write_topic_id(directory: Path, number: int) -> None:
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(bytes([number]) * 16)}\n")


def write_partition(
    log_dir: Path, name: str, batches: int, *, records: int = 1, epoch: int | None = 0, first: int = 0
) -> Path:
    """Write a partition of `batches` batches with `records` each; returns its directory."""
    data = [batch_bytes(first + number * records, "k" * records) for number in range(batches)]
    write_segment(log_dir / name, first, data)
    if epoch is not None:
        write_epochs(log_dir / name, (epoch, first))
    return log_dir / name


def kraft_dir(target: Path) -> Path:
    """Unpack the log directory of a broker of Kafka 4.2.0, whose partitions are without their segments."""
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, target)
    return target


def fingerprint(*directories: Path) -> dict[str, tuple[object, ...]]:
    """Return name, content hash, mode, size and times (but for the time of access) of all files and directories."""
    found: dict[str, tuple[object, ...]] = {}
    for directory in directories:
        for path in [directory, *sorted(directory.rglob("*"))]:
            status = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            times = status.st_mtime_ns, status.st_ctime_ns
            found[str(path)] = (digest, status.st_mode, status.st_ino, status.st_size, *times)
    return found
