"""`make demo`: a log directory that Kafka 4.2.0 wrote is planned, compacted, verified and queried.

The directory is a copy in a scratch folder, with a metadata log that holds each topic's config, and a
server.properties.  So every command of the documentation works on it as on the directory of a stopped broker.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import sediment
from sediment import records
from sediment.jobs.spark.session import create_session
from sediment.segment_io.format.names import BOOTSTRAP_FILE, METADATA_PARTITION
from tests.archives import unpack
from tests.segments import write_segment

QUERY = """
select topic, count(*) as records, count(distinct key) as keys, sum(int(value is null)) as tombstones,
       max(offset) as last_offset, array_sort(collect_set(codec)) as codecs
from log where not control group by topic order by topic
"""
CASES = ("plain", "zstd", "tombstones", "transactions", "idempotent", "headers", "mixed-codecs", "everything")
CORPUS = Path(__file__).parent / "data" / "corpus" / "cleaning"
LOG_DIR = "kafka-logs"
PROPERTIES = "server.properties"
STEPS = (
    ("Plan: how much space would a compaction free?  Nothing is written.", f"sediment plan --config {PROPERTIES}"),
    (
        "Compact.  Hard links keep the old files in `before`, so the result can be checked against them.",
        f"sediment compact --config {PROPERTIES} --keep-before before",
    ),
    (
        "Verify the result against the old files, by rules that are independent of the cleaner.",
        f"sediment verify before {LOG_DIR} --config {PROPERTIES}",
    ),
)
NEXT = (
    ("look at the records", f"sediment dump {LOG_DIR}/plain-0 --what records --limit 5"),
    ("what a second run would do", f"sediment plan --config {PROPERTIES}"),
    ("let any Kafka client read it", f"sediment serve {LOG_DIR} --read-only"),
    ("compare the files", f"ls -l {LOG_DIR}/plain-0 before/plain-0"),
)


def prepare(scratch: Path) -> None:
    """Make the log directory and its server.properties in `scratch`."""
    log_dir = scratch / LOG_DIR
    log_dir.mkdir(parents=True)
    settings: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=scratch) as unpacked:
        for case in CASES:
            settings |= place(case, log_dir, Path(unpacked))
    sediment.LogDirectories(log_dir, settings=settings).adopt().raise_for_status()
    write_metadata_log(log_dir)
    (log_dir / PROPERTIES).unlink()  # keeps the records of an adopted directory; the demo cleans them
    properties = {"process.roles": "broker,controller", "node.id": 1, "log.dirs": log_dir}
    (scratch / PROPERTIES).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def write_metadata_log(log_dir: Path) -> None:
    """Write the records of `bootstrap.checkpoint` into a metadata log, as the controller does at its first start."""
    found = list(records.read_records((log_dir / BOOTSTRAP_FILE).read_bytes()))
    batch = records.build_batch(found, leader_epoch=1)
    write_segment(log_dir / str(METADATA_PARTITION), 0, [batch], mtime_ms=found[-1].timestamp_ms)


def place(case: str, log_dir: Path, unpacked: Path) -> Mapping[str, str]:
    """Put the partition of a case into `log_dir`; return the configs of its topic as settings."""
    with tarfile.open(CORPUS / f"{case}.tar.xz") as archive:
        unpack(archive, unpacked)
    about = json.loads((unpacked / case / "case.json").read_text())
    partition = about["partition"]
    (unpacked / case / "before").rename(log_dir / partition)
    topic = partition.rpartition("-")[0]
    return {f"{topic}:{key}": value for key, value in about["configs"].items()}


def run(number: int, purpose: str, line: str, scratch: Path) -> int:
    """Show a command with its purpose, run it in `scratch`, and return its exit status."""
    print(f"\n{number}. {purpose}\n\n$ {line}\n", flush=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "sediment", *shlex.split(line)[1:]]
    return subprocess.run(arguments, cwd=scratch, env=environment, check=False).returncode


def query(log_dir: Path) -> None:
    """Show the directory as a table of Spark, and one query on it."""
    from sediment.jobs.datasource import register

    print(f'''>>> spark.read.format("kafka-log").load("{LOG_DIR}").createOrReplaceTempView("log")''')
    print('>>> spark.sql("""' + QUERY.replace("\n", "\n... ") + '""").show(truncate=False)', flush=True)
    with create_session("local[*]", "sediment demo") as spark:
        register(spark)
        spark.read.format("kafka-log").load(str(log_dir)).createOrReplaceTempView("log")
        spark.sql(QUERY).show(truncate=False)


def main() -> int:
    """Run the demo; return the highest exit status of its commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, help="where to work (default: a new temporary directory)")
    parser.add_argument("--prepare", action="store_true", help="only make the directory, and run no other command")
    given = parser.parse_args()
    scratch = Path(given.scratch or tempfile.mkdtemp(prefix="sediment-demo-")).resolve()
    if (scratch / LOG_DIR).exists():
        parser.error(f"{scratch / LOG_DIR} exists; remove it, or give another --scratch")
    logging.getLogger("sediment").setLevel(logging.ERROR)  # the small segments of the partitions are intended
    prepare(scratch)
    print(f"{len(CASES)} partitions that Apache Kafka 4.2.0 wrote are in {scratch / LOG_DIR}.  The directory has a")
    print("metadata log with each topic's config, and a server.properties, as that of a stopped broker.")
    print(f"\n$ cd {shlex.quote(str(scratch))}", flush=True)
    if given.prepare:
        return 0
    for number, (purpose, line) in enumerate(STEPS, 1):
        status = run(number, purpose, line, scratch)
        if status:
            return status
    print(f"\n{len(STEPS) + 1}. Query the directory as a table of Spark, without a broker.\n")
    query(scratch / LOG_DIR)
    print("The directory stays.  Try next, in the same folder, with .venv activated:\n")
    width = max(len(line) for _, line in NEXT)
    for purpose, line in NEXT:
        print(f"    {line:{width}}   # {purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
