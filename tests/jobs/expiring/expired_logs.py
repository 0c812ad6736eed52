"""A log for tests of `expire`, and what a run left of it."""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import FaultyFs
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot

NAME = "orders-0"
LOG_START = "log-start-offset-checkpoint"
DAY_MS = 86_400_000
EPOCHS = "0\n3\n0 0\n1 7\n2 12\n"


def make_log(
    log_dir: Path,
    name: str = NAME,
    *,
    times_ms: tuple[int, ...] = (NOW_MS, NOW_MS, NOW_MS),
    empty_active: bool = False,
    mtime_ms: int = NOW_MS,
    epochs: str | None = None,
) -> Path:
    """Segments of five records of 72 bytes at 0, 5, 10 …, each of one time, as a broker leaves them when it stops."""
    directory = log_dir / name
    for number, time_ms in enumerate(times_ms):
        base = 5 * number
        batches = [batch_bytes(base + n, value=b"val", timestamp=time_ms, producer_id=-1) for n in range(5)]
        assert {len(batch) for batch in batches} == {72}
        write_segment(directory, base, batches, index_interval_bytes=0, mtime_ms=mtime_ms)
        if base:
            write_snapshot(directory, base)
    end = 5 * len(times_ms)
    if empty_active:
        write_segment(directory, end, mtime_ms=mtime_ms)
    write_snapshot(directory, end)
    if epochs is not None:
        (directory / "leader-epoch-checkpoint").write_text(epochs)
    (log_dir / ".kafka_cleanshutdown").touch()
    return directory


def deleted(report: dict) -> list[int]:
    return [segment["base_offset"] for segment in report["deleted_segments"]]


def bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


class LinkingFs(FaultyFs):
    """Counts links too."""

    def link(self, source: Path, target: Path) -> None:
        self._run(f"link {target.name}", target.parent, lambda: Fs.link(self, source, target), lambda disk: None)
