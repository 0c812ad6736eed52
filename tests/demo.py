"""`make demo`: compacts partitions that Kafka 4.2.0 wrote, copied to a scratch directory, and queries the result."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from sediment.jobs.spark.session import create_session
from tests.archives import unpack

QUERY = """
select topic, count(*) as records, count(distinct key) as keys, sum(int(value is null)) as tombstones,
       max(offset) as last_offset, array_sort(collect_set(codec)) as codecs
from log where not control group by topic order by topic
"""
CASES = ("plain", "zstd", "tombstones", "transactions", "idempotent", "headers", "mixed-codecs", "everything")
CORPUS = Path(__file__).parent / "data" / "corpus" / "cleaning"


def place(case: str, log_dir: Path, scratch: Path) -> list[str]:
    """Put the case's partition into `log_dir`; returns the `--set` options that stand for its topic's config."""
    with tarfile.open(CORPUS / f"{case}.tar.xz") as archive:
        unpack(archive, scratch)
    about = json.loads((scratch / case / "case.json").read_text())
    partition = about["partition"]
    (scratch / case / "before").rename(log_dir / partition)
    topic = partition.rpartition("-")[0]
    return [f"--set={topic}:{key}={value}" for key, value in about["configs"].items()]


def query(log_dir: Path) -> None:
    """Show the directory as a table of Spark, and one query on it."""
    print(f'''>>> spark.read.format("kafka-log").load("{log_dir}").createOrReplaceTempView("log")''')
    print('>>> spark.sql("""' + QUERY.replace("\n", "\n... ") + '""").show(truncate=False)', flush=True)
    with create_session("local[*]", "sediment demo") as spark:
        spark.read.format("kafka-log").load(str(log_dir)).createOrReplaceTempView("log")
        spark.sql(QUERY).show(truncate=False)


def main() -> int:
    """Run the demo; returns the exit status of `sediment compact`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, help="where to work (default: a new temporary directory)")
    given = parser.parse_args()
    scratch = Path(given.scratch or tempfile.mkdtemp(prefix="sediment-demo-"))
    log_dir = scratch / "kafka-logs"
    log_dir.mkdir(parents=True)
    sets = [option for case in CASES for option in place(case, log_dir, scratch)]
    (log_dir / ".kafka_cleanshutdown").touch()
    print(f"{len(CASES)} partitions that Apache Kafka 4.2.0 wrote are in {log_dir}\n")
    command = ["sediment", "compact", str(log_dir), "--force", "--broker-defaults", *sets]
    print("$ " + shlex.join(command[:5]) + " --set=<each topic's own config> …\n", flush=True)
    status = subprocess.run([sys.executable, "-m", "sediment.jobs.cli", *command[1:]], check=False).returncode
    print("\nrecords: read by the cleaner → kept.  Segments without records left stay, empty, until the next round")
    print("groups them with their neighbours, as Kafka does.")
    print(f"\nThe directory is what a broker's own cleaner would have left; look at it: ls -l {log_dir}/plain-0")
    if status == 0:
        print("\nSpark reads it as a table, without a broker:\n")
        query(log_dir)
    return status


if __name__ == "__main__":
    sys.exit(main())
