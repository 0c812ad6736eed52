"""Kafka's own command-line tools and kcat, as an operator calls them; each returns what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.oracle import kafka_tools_jars, program
from tests.e2e.kraft import class_path

_TIMEOUT_SECONDS = 120
_SEEKS = Path(__file__).parent / "java" / "Seeks.java"
_TRANSACTIONS = Path(__file__).parent / "java" / "Transactions.java"
_TOOLS = Path(__file__).parent / "java" / "Tools.java"
_REFUSED = Path(__file__).parent / "java" / "Refused.java"
_GROUP_MEMBER = Path(__file__).parent / "java" / "GroupMember.java"
_QUIET = ("SLF4J", "WARNING", "log4j", "Picked up")

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
REASSIGNMENTS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"


def tool(bootstrap: str, name: str, *arguments: str) -> str:
    """Run a tool of Kafka's by its class; return its standard output.

    Raises:
        AssertionError: it failed.
    """
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF")
    done = subprocess.run(
        [program("java"), *options, "-cp", _class_path_of_tools(), name, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Printed:
    """The exit status of a tool, and what it printed on both streams."""

    status: int
    lines: tuple[str, ...]


def tools_in_turn(bootstrap: str, commands: Sequence[Sequence[str]]) -> list[Printed]:
    """Run tools, each its class and its arguments, one after another in one process."""
    at = ("--bootstrap-server", bootstrap)
    # For this tool alone, the option belongs to the subcommand.
    given = [[name, *arguments, *at] if name == CLUSTER else [name, *at, *arguments] for name, *arguments in commands]
    said = _java_program(_TOOLS, given="\n".join("\t".join(each) for each in given)).splitlines()
    found = []
    while said:
        status, count = map(int, said[0].split())
        lines = (line for line in said[1 : 1 + count] if not line.startswith(_QUIET))
        found.append(Printed(status, tuple(lines)))
        del said[: 1 + count]
    assert len(found) == len(commands)
    return found


def seeks(bootstrap: str, isolation: str, count: int, choices: list[str]) -> list[str]:
    """Return the first `count` records from each choice on, read by one of Kafka's own consumers.

    A choice is a topic, a partition, `offset` or `time`, and a number.  java/Seeks.java defines the printed lines.
    """
    said = _java_program(_SEEKS, bootstrap, isolation, str(count), given="\n".join(choices))
    return [line for line in said.splitlines() if not line.startswith(_QUIET)]


def transactions(bootstrap: str, transactional_id: str, first: int, count: int) -> None:
    """Run transactions of one of Kafka's own producers, as java/Transactions.java describes."""
    _java_program(_TRANSACTIONS, bootstrap, transactional_id, str(first), str(count))


def refused_producer(bootstrap: str, topic: str, transactional_id: str = "") -> list[str]:
    """Return the errors that a producer with Kafka's default settings gets, as java/Refused.java describes."""
    return _java_program(_REFUSED, bootstrap, topic, transactional_id).splitlines()


def _class_path_of_tools() -> str:
    return os.pathsep.join([class_path(), *map(str, kafka_tools_jars().glob("*.jar"))])


def _java_program(source: Path, *arguments: str, given: str = "") -> str:
    """Run a source file with Kafka's classes; return its standard output.

    Raises:
        AssertionError: it failed.
    """
    java = [program("java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
    done = subprocess.run(
        [*java, "-cp", _class_path_of_tools(), str(source), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def group_member(bootstrap: str, group: str, instance: str, regex: str, count: int) -> Iterator[tuple[list[str], str]]:
    """Run a static member of a group by the new protocol.

    Yield, as soon as it has read and committed `count` records, their lines and its partitions; at the end, it closes.
    """
    java = [program("java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
    member = [str(_GROUP_MEMBER), bootstrap, group, instance, regex, str(count)]
    with subprocess.Popen(
        [*java, "-cp", class_path(), *member], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            records: list[str] = []
            for line in process.stdout:
                if line.startswith("committed "):
                    yield records, line.removeprefix("committed ").strip()
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert process.wait(_TIMEOUT_SECONDS) == 0
                    return
                if not line.startswith(_QUIET):
                    records.append(line.strip())
            raise AssertionError(f"the member ended after {records}")
        finally:
            process.kill()


def table(text: str) -> list[str]:
    """Return the lines of a tool's output in a stable order, with single spaces."""
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if not line.startswith(_QUIET))
    return sorted(line for line in lines if line)


def kcat_path() -> str | None:
    """Return the path of kcat, None if it is not installed."""
    return shutil.which("kcat") or shutil.which("kafkacat")


def kcat_records(
    kcat: str,
    bootstrap: str,
    topic: str,
    partition: int,
    isolation: str,
    start: str = "beginning",
    count: int | None = None,
) -> bytes:
    """Return what kcat prints of a partition: offsets, times, keys, values, headers, with their sizes.

    `start` is an offset, or s@ and a time in ms; None prints all records up to the end.
    """
    done = subprocess.run(
        [
            *(kcat, "-C", "-q", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", start, "-e"),
            *(() if count is None else ("-c", str(count))),
            *("-X", f"isolation.level={isolation}", "-X", "check.crcs=true", "-f", "%o %T %K %k %S %s %h\n"),
        ],
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
