"""Compaction of one partition from a bucket to another: `sediment compact s3://… --output s3://… --strategy split`.

1. Generate the partition, in segments of 100 MB and records of 1 KB, and upload it to a local S3 server (VersityGW).
2. Compact it in splits, as one command in a separate process.
3. Measure the time, the total memory of all processes of the command, and the disk space of its temporary files.  The
   folder for scratch files also contains the files of Spark's shuffle.
4. Check the output: one record is left for each key, and every file has the size and digest of the manifest.

During the upload, the disk holds the partition twice.  The free space is checked first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.generate import ONCE_FIRST, Shape, write_partition
from benchmarks.measure import GIGABYTE, MEGABYTE, RESULTS, SLOTS, TreePeak, machine
from benchmarks.options import NOW_MS
from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.engine.copying.check import check_copy
from sediment.segment_io.stores import Store
from tests.ports import free_port

PAGE = RESULTS / "scale.md"
RECORD_BYTES, VALUE_BYTES = 1026, 1000
SEGMENT_BYTES = 100 * MEGABYTE
SCRATCH_LIMIT_BYTES = GIGABYTE
FREE_DISK = 2.2
"""Free disk that a run needs, as a multiple of the partition: the generated files beside those of the server."""

_ROOT = Path(__file__).resolve().parents[1]
_SERVER = _ROOT / ".versitygw" / "versitygw"
_ACCESS = "some-key:some-secret"
_REGION = "us-east-1"
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Outcome:
    """Cost of one command; bytes of log before and after, peaks of memory and disk in bytes."""

    log_bytes: int
    output_bytes: int
    messages: int
    seconds: float
    peak_bytes: int
    peak_process_bytes: int
    scratch_bytes: int


class ScratchPeak:
    """Sampler of the disk space that the files below a directory use, five times per second."""

    def __init__(self, directory: Path) -> None:
        self.bytes = 0
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="scratch-peak", daemon=True)

    def __enter__(self) -> ScratchPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self.bytes = max(self.bytes, _used_bytes(self._directory))


def _used_bytes(directory: Path) -> int:
    used = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                used += Path(folder, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return used


@contextmanager
def bucket_server(directory: Path) -> Iterator[str]:
    """Run an S3 server that keeps each object in a file of `directory`, and reads only the range that is asked for.

    Yields:
        Host and port.
    """
    if not _SERVER.exists():
        raise SystemExit("the S3 server is missing; `make bench-buckets` installs it")
    port = free_port()
    objects = directory / "objects"
    objects.mkdir()
    key, secret = _ACCESS.split(":")
    command = [str(_SERVER), "--access", key, "--secret", secret, "--region", _REGION]
    command += ["--port", f"127.0.0.1:{port}", "--quiet", "posix", str(objects)]
    with (directory / "server.log").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if running.poll() is not None:
                    raise SystemExit("the S3 server ended") from None
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


def _uri(endpoint: str, bucket: str) -> str:
    query = urlencode({"scheme": "http", "endpoint_override": endpoint, "region": _REGION})
    return f"s3://{_ACCESS}@{bucket}/logs?{query}"


def make_bucket(endpoint: str, name: str) -> None:
    """Create a bucket."""
    from pyarrow.fs import S3FileSystem

    key, secret = _ACCESS.split(":")
    S3FileSystem(
        access_key=key,
        secret_key=secret,
        endpoint_override=endpoint,
        scheme="http",
        region=_REGION,
        allow_bucket_creation=True,
    ).create_dir(name)


def upload(log_dir: Path, store: Store) -> None:
    """Upload the files of a log directory, and remove each once it is uploaded."""
    for path in sorted(log_dir.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                store.write(str(path.relative_to(log_dir)), iter(lambda file=file: file.read(8 << 20), b""))
            path.unlink()


def compact(source: str, output: str, scratch: Path, keys: int) -> Outcome:
    """Run the command and check its result."""
    command = [sys.executable, "-m", "sediment.jobs.cli", "compact", source, "--output", output, "--strategy=split"]
    command += ["--force", "--json", "--quiet", f"--master={SLOTS}", f"--now-ms={NOW_MS}"]
    command += ["--set=cleanup.policy=compact", f"--set=segment.bytes={SEGMENT_BYTES}"]
    environment = {**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    started = time.perf_counter()
    with tempfile.TemporaryFile() as document, subprocess.Popen(command, stdout=document, env=environment) as process:
        with TreePeak(psutil.Process(process.pid)) as peak, ScratchPeak(scratch) as disk:
            status = process.wait()
        seconds = time.perf_counter() - started
        document.seek(0)
        (partition,) = json.load(document)["partitions"]
    assert status == 0 and partition["status"] == "compacted", partition
    assert partition["strategy"] == "split", partition
    assert partition["messages_written"] == keys, partition
    checked = check_copy(Store(output))
    assert not checked.differences, checked.differences[:1]
    return Outcome(
        log_bytes=partition["bytes_before"],
        output_bytes=partition["bytes_after"],
        messages=partition["messages_read"],
        seconds=seconds,
        peak_bytes=peak.total_bytes,
        peak_process_bytes=peak.largest_bytes,
        scratch_bytes=disk.bytes,
    )


HEAD = (
    "one partition",
    "GB before",
    "GB after",
    "records",
    "seconds",
    "peak, MB",
    "largest process, MB",
    "scratch, MB",
)


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return the row of a table."""
    return (
        "from bucket to bucket, in splits",
        f"{outcome.log_bytes / GIGABYTE:.2f}",
        f"{outcome.output_bytes / GIGABYTE:.2f}",
        f"{outcome.messages:,}",
        f"{outcome.seconds:.0f}",
        f"{outcome.peak_bytes / MEGABYTE:,.0f}",
        f"{outcome.peak_process_bytes / MEGABYTE:,.0f}",
        f"{outcome.scratch_bytes / MEGABYTE:,.0f}",
    )


def main() -> None:
    """Check the disk, run the steps and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20, help="size of the partition")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="directory for all data")
    parser.add_argument("--results", type=Path, help="append the result here, as one line of JSON")
    parser.add_argument("--docs", action="store_true", help="write the table into benchmarks/results/scale.md")
    given = parser.parse_args()
    log_bytes = int(given.gigabytes * GIGABYTE)
    free_bytes = shutil.disk_usage(given.scratch).free
    if free_bytes < FREE_DISK * log_bytes:
        raise SystemExit(
            f"{given.scratch} has {free_bytes / GIGABYTE:.1f} GB free, and {FREE_DISK * log_bytes / GIGABYTE:.1f} GB "
            "are needed; name a larger disk with --scratch, or a smaller partition with --gigabytes"
        )
    keys = log_bytes // RECORD_BYTES // 10
    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-buckets-") as top:
        log_dir, server, scratch = (Path(top) / name for name in ("logs", "server", "scratch"))
        for directory in (log_dir, server, scratch):
            directory.mkdir()
        shape = Shape(log_bytes, keys=keys, value_bytes=VALUE_BYTES, segment_bytes=SEGMENT_BYTES, population=ONCE_FIRST)
        write_partition(log_dir / "load-0", shape)
        (log_dir / ".kafka_cleanshutdown").touch()
        with bucket_server(server) as endpoint:
            source, output = _uri(endpoint, "source"), _uri(endpoint, "output")
            for bucket in ("source", "output"):
                make_bucket(endpoint, bucket)
            upload(log_dir, Store(source))
            print("uploaded", file=sys.stderr, flush=True)
            outcome = compact(source, output, scratch, keys)
    if given.results:
        with given.results.open("a") as sink:
            sink.write(json.dumps(asdict(outcome)) + "\n")
    print(" | ".join(HEAD), " | ".join(row(outcome)), machine(), sep="\n")
    assert outcome.scratch_bytes < SCRATCH_LIMIT_BYTES, "the temporary files exceed the limit"
    if given.docs:
        command = " ".join(["python -m benchmarks.buckets", *sys.argv[1:]])
        where = f"Measured with `{command}` on {machine()}; one run; the S3 server ran on the same cores."
        fill_page(PAGE, "buckets", f"{where}\n\n{markdown_table(HEAD, [row(outcome)])}")


if __name__ == "__main__":
    main()
