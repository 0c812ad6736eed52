"""Kafka's own classes as a test oracle: one long-lived JVM, with one JSON command and one JSON answer per line.

The JVM runs java/*.java under a clock that stands still, against the reference release or the one that the variable
SEDIMENT_KAFKA_VERSION names.  The JARs lie in the user's cache directory (or in $SEDIMENT_KAFKA_JARS), brought there
once by Maven, or by Spark where there is no Maven; our compiled classes lie beside them, keyed by a digest of their
sources.

Invariant: an answer belongs to the command written last; after a broken pipe the oracle cannot be used again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from unittest import SkipTest

import platformdirs

from tests.conformance.logs import SPEC, writing_steps

REFERENCE_VERSION = "4.2.0"
NEWEST_VERSION = "4.4.0"
KAFKA_VERSION = os.environ.get("SEDIMENT_KAFKA_VERSION", REFERENCE_VERSION)
SPARK_VERSION = "4.2.0"
HADOOP_VERSION = "3.5.0"
JARS_VARIABLE = "SEDIMENT_KAFKA_JARS"
_LOGGING_PACKAGES = ("org.slf4j:slf4j-nop:1.7.36",)
_TOOLS_PACKAGES = (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",)
_SPARK_KAFKA_PACKAGES = (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",)
_HADOOP_PACKAGES = (f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}",)
_YARN_PACKAGES = (
    *("org.junit.jupiter:junit-jupiter-api:5.11.4", "org.mockito:mockito-core:4.11.0"),
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
)
_SOURCES = Path(__file__).parent / "java"
_MAIN = "sediment.oracle.Main"
# Later releases have these classes of Kafka no more, or with other constructors.
_OF_REFERENCE = ("Broker.java", "Transactions.java")
_IMPORT = re.compile(r"^(import )((?:org\.apache\.kafka|kafka)(?:\.[a-z]\w*)*)\.([A-Z][\w.]*);$", re.MULTILINE)

Configs = Mapping[str, str]


class OracleUnavailableError(RuntimeError):
    """Java or Kafka's JARs cannot be had; the message says which and what to do."""


class KafkaFailedError(RuntimeError):
    """Kafka threw while it ran a command; the message is the exception, `trace` its stack."""

    def __init__(self, failure: str, trace: str) -> None:
        super().__init__(failure)
        self.trace = trace


# -------------------------------------------------------------------------------------------------------------- answers
@dataclass(frozen=True, slots=True)
class SegmentState:
    """A loaded segment; `largest_timestamp` is the file's modification time (ms) where no record has one."""

    base_offset: int
    log_bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class LogState:
    """Kafka's state of an open log; `producers` are (producer id, last sequence), ascending.

    `remembered` are the batches that it would recognise: (producer id, last sequence, last offset, offset delta).
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    first_unstable_offset: int | None
    recovery_point: int
    segments: tuple[SegmentState, ...]
    producers: tuple[tuple[int, int], ...]
    aborted: tuple[AbortedTransaction, ...]
    remembered: tuple[tuple[int, int, int, int], ...]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(segment.base_offset for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Kafka's account of one cleaning; `end_offset` is the next cleaner checkpoint."""

    first_dirty_offset: int
    first_uncleanable_offset: int  # rounded down to a segment's base
    end_offset: int
    cleanable_ratio: float  # NaN where the clean and the dirty part are both empty
    map_messages_read: int
    messages_read: int
    messages_written: int
    bytes_read: int
    bytes_written: int
    invalid_messages_read: int
    buffer_utilization: float
    bytes_before: int
    bytes_after: int
    base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CleanAttempt:
    """One partition's round.  `chosen`: Kafka's manager would pick it; `uncleanable_offset` is not rounded.

    `cleaned` is None where nothing was tried (an empty dirty range, or not chosen) and where Kafka threw, which makes
    the partition uncleanable: then `error` says what.
    """

    chosen: bool
    uncleanable_offset: int
    cleaned: Cleaned | None
    error: str | None


@dataclass(frozen=True, slots=True)
class DumpSizes:
    """Size of a dump."""

    segments: int
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class TimedCleaning:
    """Duration of a cleaning, and the bytes of the result."""

    seconds: float
    bytes_after: int


@dataclass(frozen=True, slots=True)
class TimedAppends:
    """Duration of appends, in wall time and in CPU time of the appending thread."""

    appends: int
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class TimedLoad:
    """Seconds of the clock and of the loading threads' CPU, and the log end offsets that were found."""

    wall_seconds: float
    cpu_seconds: float
    log_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retained:
    """Log after retention, and the number of deleted segments."""

    deleted: int
    state: LogState


@dataclass(frozen=True, slots=True)
class Lookups:
    """Results of a consumer's look-ups.

    `batches`: per asked offset the base and last offset of the first batch fetched, None at the log's end.
    `times`: per asked timestamp the (timestamp, offset) of ListOffsets, None where no record is that late.
    """

    batches: tuple[tuple[int, int] | None, ...]
    times: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class MessageRead:
    """Kafka's reading of a message of its protocol, and the same message written in a version.

    `refused` is the exception of a failed reading; then there is no more.  `left_bytes` follow the message.  `written`
    is None where Kafka refused to write, for `unwritable`.
    """

    refused: str | None
    left_bytes: int
    json: dict[str, Any] | None
    written: bytes | None
    unwritable: str | None


@dataclass(frozen=True, slots=True)
class BrokerRun:
    """A broker's start, tasks and stop: states of the open partitions before the stop, and what was cleaned, by name.

    A partition that was picked and where Kafka threw has None in `cleaned` and its exception in `errors`.
    """

    partitions: dict[str, LogState]
    cleaned: dict[str, Cleaned | None]
    errors: dict[str, str]


# -------------------------------------------------------------------------------------------------------------- the JVM
class KafkaOracle:
    """Kafka's classes in a JVM of its own; a context manager.

    Directories of partitions are named topic-N.  Every command leaves its log closed as a broker's shutdown leaves it.
    Settings are Kafka's topic keys; a segment.bytes below Kafka's minimum is accepted.

    Raises:
        OracleUnavailableError: Java or the JARs cannot be had.
        KafkaFailedError: Kafka threw while it ran a command.
    """

    def __init__(self, *, java_options: Sequence[str] = ("-Xmx2g",)) -> None:
        jars = kafka_jars()
        classes = _compiled(jars)
        # The JVM's own complaints go to a file: nobody reads a pipe while a command runs.
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [program("java"), *java_options, "-cp", f"{classes}{os.pathsep}{jars}/*", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> KafkaOracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._complaints.close()

    def generate(
        self,
        spec: Mapping[str, Any],
        directory: Path,
        *,
        log_start_offset: int = 0,
        checkpoints: bool = False,
        first_dirty_offset: int | None = None,
        high_watermark: int | None = None,
        topic_id: str | None = None,
    ) -> LogState:
        """Write (or go on writing) the partition `directory` as `spec` says (see logs.py).

        With `checkpoints`, the parent gets the entries of a real log directory: recovery point, log start, high
        watermark (the log end unless given), cleaner checkpoint (if given) and the clean-shutdown marker.
        """
        whole = {**SPEC, **spec}
        answer = self._ask(
            "generate",
            directory=str(directory.absolute()),
            configs=whole["configs"],
            now_ms=whole["start_ms"],
            log_start=log_start_offset,
            steps=writing_steps(spec),
            checkpoints=checkpoints,
            first_dirty=first_dirty_offset,
            high_watermark=high_watermark,
            topic_id=topic_id,
        )
        return _log_state(answer)

    def clean(
        self,
        directory: Path,
        *,
        now_ms: int,
        configs: Configs,
        first_dirty_offset: int | None = None,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
        map_bytes: int | None = None,
        load_factor: float | None = None,
        producer_id_expiration_ms: int | None = None,
        only_chosen: bool = False,
    ) -> CleanAttempt:
        """Run one round of Kafka's cleaner on a partition, by default whatever its dirty ratio.

        `first_dirty_offset` is the cleaner checkpoint, None for none; `high_watermark` None is the log end.  A slot of
        the offset map takes 24 bytes.
        """
        partition = _without_none(
            directory=str(directory.absolute()),
            configs=dict(configs),
            first_dirty=first_dirty_offset,
            log_start=log_start_offset,
            high_watermark=high_watermark,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        answer = self._ask(
            "clean",
            now_ms=now_ms,
            partitions=[partition],
            map_bytes=map_bytes,
            load_factor=load_factor,
            only_chosen=only_chosen,
        )
        return _clean_attempt(answer["partitions"][0])

    def clean_timed(
        self,
        directories: Sequence[Path],
        scratch: Path,
        *,
        now_ms: int,
        configs: Configs,
        threads: int = 1,
        repeat: int = 3,
        map_bytes: int | None = None,
    ) -> list[TimedCleaning]:
        """Time only the cleaning, with logs open, of all `directories` by `threads` cleaners, `repeat` times.

        Each time copies in `scratch` (on the same filesystem) are cleaned, so that the work is the same.  `map_bytes`
        is per thread.

        Raises:
            KafkaFailedError: a partition could not be cleaned, or not to its end in one round.
        """
        timed = []
        for _ in range(repeat):
            with tempfile.TemporaryDirectory(dir=scratch) as parent:
                partitions = []
                for number, directory in enumerate(directories):
                    copy = Path(parent) / str(number) / directory.name
                    link_partition(directory, copy)
                    partitions.append({"directory": str(copy.absolute()), "configs": dict(configs)})
                answer = self._ask("clean", now_ms=now_ms, partitions=partitions, threads=threads, map_bytes=map_bytes)
            for result in answer["partitions"]:
                if "error" in result:
                    raise KafkaFailedError(result["error"], "")
                if result["end"] < result["first_uncleanable"]:
                    raise KafkaFailedError("the offset map does not hold the keys of one round", "")
            bytes_after = sum(result["size_after"] for result in answer["partitions"])
            timed.append(TimedCleaning(float(answer["seconds"]), bytes_after))
        return timed

    def load(
        self,
        directory: Path,
        *,
        now_ms: int,
        configs: Configs,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        producer_id_expiration_ms: int | None = None,
    ) -> LogState:
        """Load a partition as a broker's start does, after a clean or an unclean stop, and say what came of it.

        The high watermark is the log start offset, as it is before a broker applies its checkpoint.
        """
        answer = self._ask(
            "load",
            directory=str(directory.absolute()),
            now_ms=now_ms,
            configs=dict(configs),
            clean=clean,
            recovery_point=recovery_point,
            log_start=log_start_offset,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        return _log_state(answer)

    def load_timed(
        self, directories: Sequence[Path], scratch: Path, *, now_ms: int, configs: Configs, threads: int
    ) -> TimedLoad:
        """Time `threads` recovery threads that load `directories` after an unclean stop.

        Copies in `scratch` (on the same filesystem) are loaded, from their first segments on.
        """
        with tempfile.TemporaryDirectory(dir=scratch) as parent:
            partitions = []
            for number, directory in enumerate(directories):
                copy = Path(parent) / str(number) / directory.name
                link_partition(directory, copy)
                partitions.append(
                    {"directory": str(copy.absolute()), "configs": dict(configs), "clean": False, "recovery_point": 0}
                )
            answer = self._ask("load_timed", now_ms=now_ms, partitions=partitions, threads=threads)
        return TimedLoad(answer["seconds"], answer["cpu_seconds"], tuple(answer["log_ends"]))

    def append_timed(
        self, directory: Path, batch: bytes, *, appends: int, now_ms: int, configs: Configs, batches: int = 1
    ) -> TimedAppends:
        """Append `batch` again and again: as a leader, or as a follower with `batches` copies in each append.

        The first quarter of the appends is not timed.
        """
        answer = self._ask(
            "append",
            directory=str(directory.absolute()),
            batch=batch.hex(),
            batches=batches,
            appends=appends,
            now_ms=now_ms,
            configs=dict(configs),
        )
        return TimedAppends(answer["appends"], answer["wall_seconds"], answer["cpu_seconds"])

    def dump(self, directory: Path, output: Path) -> DumpSizes:
        """Write every segment, batch and record of a directory as JSON lines (gzip if `output` ends with .gz).

        The format is that of the corpus (tests/data/corpus/README.md).  Nothing in the directory changes.
        """
        return DumpSizes(**self._ask("dump", directory=str(directory.absolute()), output=str(output.absolute())))

    def retention(
        self,
        directory: Path,
        *,
        now_ms: int,
        configs: Configs,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
    ) -> Retained:
        """Delete the segments of a partition that retention lets go."""
        answer = self._ask(
            "retention",
            directory=str(directory.absolute()),
            now_ms=now_ms,
            configs=dict(configs),
            log_start=log_start_offset,
            high_watermark=high_watermark,
        )
        deleted = answer.pop("deleted")
        return Retained(deleted, _log_state(answer))

    def lookup(
        self,
        directory: Path,
        *,
        now_ms: int,
        configs: Configs,
        offsets: Iterable[int] = (),
        timestamps: Iterable[int] = (),
        log_start_offset: int = 0,
    ) -> Lookups:
        """What fetches from `offsets` and ListOffsets at `timestamps` (ms) answer."""
        answer = self._ask(
            "lookup",
            directory=str(directory.absolute()),
            now_ms=now_ms,
            configs=dict(configs),
            offsets=list(offsets),
            timestamps=list(timestamps),
            log_start=log_start_offset,
        )
        return Lookups(_pairs_or_none(answer["batches"]), _pairs_or_none(answer["times"]))

    def names(self, names: Sequence[str]) -> list[tuple[str, int, bool] | None]:
        """Topic, partition and whether Kafka allows the topic, by a directory's name; None: a broker does not start."""
        answers = self._ask("names", names=list(names))["partitions"]
        return [None if "refused" in one else (one["topic"], one["partition"], one["allowed"]) for one in answers]

    def transactions(
        self, steps: Sequence[Mapping[str, Any]], *, begin: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Take steps of a transaction coordinator with one transactional id; `begin` starts another coordinator.

        Each step has the answers that it caused and the state that it left (see transactions/Transactions.java).
        """
        _check_reference("transaction coordinator")
        results: list[dict[str, Any]] = self._ask("transactions", begin=begin, steps=list(steps))["results"]
        return results

    def messages(self, messages: Iterable[tuple[str, int, bytes, int]]) -> list[MessageRead]:
        """Read messages by Kafka's generated classes; each is name, version, bytes, version to write."""
        given = [(name, version, content.hex(), to) for name, version, content, to in messages]
        return [
            MessageRead(
                refused=one.get("refused"),
                left_bytes=one.get("left", 0),
                json=one.get("json"),
                written=bytes.fromhex(one["written"]) if "written" in one else None,
                unwritable=one.get("unwritable"),
            )
            for one in self._ask("messages", messages=given)["messages"]
        ]

    def messages_from_json(self, messages: Iterable[tuple[str, int, dict[str, Any]]]) -> list[bytes]:
        """Return the bytes that Kafka's generated classes write for messages; each is name, version, JSON."""
        return [bytes.fromhex(one) for one in self._ask("messages_from_json", messages=list(messages))["messages"]]

    def error_codes(self) -> dict[int, tuple[str, bool]]:
        """Name by code, and True if clients try again."""
        return {code: (name, retriable) for code, name, retriable in self._ask("numbers")["errors"]}

    def api_versions(self) -> dict[int, tuple[str, int, int]]:
        """Name, lowest and highest version by API key, as brokers and controllers offer them."""
        return {key: (name, lowest, highest) for key, name, lowest, highest in self._ask("numbers")["keys"]}

    def read_checkpoint(self, file: Path) -> dict[tuple[str, int], int]:
        """Offsets by topic and partition of an offset checkpoint as a broker reads it."""
        entries = self._ask("read_checkpoint", file=str(file.absolute()))["entries"]
        return {(topic, partition): offset for topic, partition, offset in entries}

    def broker(
        self,
        log_dir: Path,
        *,
        now_ms: int,
        topics: Mapping[str, Configs],
        defaults: Configs | None = None,
        tasks: Sequence[str] = (),
        map_bytes: int | None = None,
        load_factor: float | None = None,
        producer_id_expiration_ms: int | None = None,
    ) -> BrokerRun:
        """Start Kafka's log manager over a whole log directory, run `tasks` once each, shut it down.

        Tasks: "clean" (every partition that the cleaner would pick, each once) and "retention".  `topics` holds
        settings by topic, `defaults` those of the others.  High watermarks come from the checkpoint file: log end
        without the file, log start without the entry.
        """
        _check_reference("log layer")
        answer = self._ask(
            "broker",
            log_dir=str(log_dir.absolute()),
            now_ms=now_ms,
            topics={topic: dict(configs) for topic, configs in topics.items()},
            defaults=dict(defaults or {}),
            tasks=list(tasks),
            map_bytes=map_bytes,
            load_factor=load_factor,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        results: dict[str, dict[str, Any]] = answer.get("cleaned", {})
        return BrokerRun(
            {name: _log_state(state) for name, state in answer["partitions"].items()},
            {name: _cleaned(result) for name, result in results.items()},
            {name: result["error"] for name, result in results.items() if "error" in result},
        )

    def _ask(self, command: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps({"command": command, **_without_none(**fields)}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self._complaints.seek(0)
            said = self._complaints.read().decode(errors="replace")[-2000:]
            raise OracleUnavailableError(f"the JVM of the Kafka oracle ended during {command!r}; it said: {said}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise KafkaFailedError(answer["failure"], answer["trace"])
        return answer


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _log_state(answer: Mapping[str, Any]) -> LogState:
    return LogState(
        log_start_offset=answer["log_start"],
        log_end_offset=answer["log_end"],
        high_watermark=answer["high_watermark"],
        last_stable_offset=answer["lso"],
        first_unstable_offset=answer["first_unstable"],
        recovery_point=answer["recovery_point"],
        segments=tuple(SegmentState(*segment) for segment in answer["segments"]),
        producers=tuple((producer_id, sequence) for producer_id, sequence in answer["producers"]),
        aborted=tuple(AbortedTransaction(*entry) for entry in answer["aborted"]),
        remembered=tuple((batch[0], batch[1], batch[2], batch[3]) for batch in answer["remembered"]),
    )


def _clean_attempt(answer: Mapping[str, Any]) -> CleanAttempt:
    return CleanAttempt(answer["chosen"], answer["upper"], _cleaned(answer), answer.get("error"))


def _cleaned(answer: Mapping[str, Any]) -> Cleaned | None:
    if "end" not in answer:
        return None
    return Cleaned(
        first_dirty_offset=answer["first_dirty"],
        first_uncleanable_offset=answer["first_uncleanable"],
        end_offset=answer["end"],
        cleanable_ratio=float(answer["ratio"]),
        map_messages_read=answer["map_messages"],
        messages_read=answer["messages_read"],
        messages_written=answer["messages_written"],
        bytes_read=answer["bytes_read"],
        bytes_written=answer["bytes_written"],
        invalid_messages_read=answer["invalid"],
        buffer_utilization=answer["utilization"],
        bytes_before=answer["size_before"],
        bytes_after=answer["size_after"],
        base_offsets=tuple(answer["segments"]),
    )


def _pairs_or_none(pairs: Iterable[Sequence[int] | None]) -> tuple[tuple[int, int] | None, ...]:
    return tuple(None if pair is None else (pair[0], pair[1]) for pair in pairs)


def link_partition(source: Path, target: Path) -> None:
    """A copy of a partition that shares the data of its sealed segments, which a cleaner never writes to."""
    target.mkdir(parents=True)
    active = max(path.name for path in source.glob("*.log"))
    for path in source.iterdir():
        if path.suffix == ".log" and path.name != active:
            os.link(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)


# ----------------------------------------------------------------------------------------------------- JARs and classes
def oracle_available() -> bool:
    """Return True if Java is there and Kafka's JARs are, or could be fetched."""
    try:
        _compiled(kafka_jars())
    except OracleUnavailableError:
        return False
    return True


def _check_reference(what: str) -> None:
    if KAFKA_VERSION != REFERENCE_VERSION:
        raise SkipTest(f"the {what} is that of Kafka {REFERENCE_VERSION} only")


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the directory of the JARs of a Kafka release, filled at the first call.

    Raises:
        OracleUnavailableError: they are not there and neither Maven nor Spark could bring them.
    """
    given = os.environ.get(JARS_VARIABLE) if version == KAFKA_VERSION else None
    directory = Path(given) if given else platformdirs.user_cache_path("sediment") / f"kafka-{version}"
    jar = f"*kafka_2.13-{version}.jar"
    if not _has(directory, jar) and directory.is_dir() and any(directory.iterdir()):
        raise OracleUnavailableError(
            f"{directory} holds files, but not Kafka {version}; empty it or let {JARS_VARIABLE} name another"
        )
    packages = (f"org.apache.kafka:kafka_2.13:{version}", *_LOGGING_PACKAGES)
    return fetched_jars(directory, jar, _SOURCES / "pom.xml", packages, properties={"kafka.version": version})


def kafka_tools_jars() -> Path:
    """Return the directory of the JARs of Kafka's command-line tools, which need `kafka_jars` too.

    Raises:
        OracleUnavailableError: they are not there and neither Maven nor Spark could bring them.
    """
    directory = platformdirs.user_cache_path("sediment") / f"kafka-tools-{KAFKA_VERSION}"
    jar = f"*kafka-tools-{KAFKA_VERSION}.jar"
    return fetched_jars(
        directory, jar, _SOURCES / "tools-pom.xml", _TOOLS_PACKAGES, properties={"kafka.version": KAFKA_VERSION}
    )


def spark_kafka_jars() -> Path:
    """Return the directory of the JARs of Spark's Kafka source that PySpark lacks.

    Raises:
        OracleUnavailableError: they are not there and neither Maven nor Spark could bring them.
    """
    directory = platformdirs.user_cache_path("sediment") / f"spark-kafka-{SPARK_VERSION}"
    jar = f"*spark-token-provider-kafka-0-10_2.13-{SPARK_VERSION}.jar"
    return fetched_jars(directory, jar, _SOURCES / "spark-kafka-pom.xml", _SPARK_KAFKA_PACKAGES)


def hadoop_jars() -> Path:
    """Return the directory of the JARs of HDFS's servers.

    Raises:
        OracleUnavailableError: they are not there and neither Maven nor Spark could bring them.
    """
    directory = platformdirs.user_cache_path("sediment") / f"hadoop-{HADOOP_VERSION}"
    jar = f"*hadoop-client-minicluster-{HADOOP_VERSION}.jar"
    return fetched_jars(directory, jar, _SOURCES / "hadoop-pom.xml", _HADOOP_PACKAGES)


def yarn_jars() -> Path:
    """Return the directory of the JARs that YARN's mini cluster needs beside `hadoop_jars`.

    Raises:
        OracleUnavailableError: they are not there and neither Maven nor Spark could bring them.
    """
    directory = platformdirs.user_cache_path("sediment") / f"yarn-{HADOOP_VERSION}"
    return fetched_jars(directory, "*mockito-core-*.jar", _SOURCES / "yarn-pom.xml", _YARN_PACKAGES)


def fetched_jars(
    directory: Path, jar: str, pom: Path, packages: Sequence[str] = (), *, properties: Mapping[str, str] | None = None
) -> Path:
    """Return the directory, with the JARs that a POM needs; without `packages`, only Maven can bring them.

    Raises:
        OracleUnavailableError: they are not there and could not be brought.
    """
    if not _has(directory, jar):
        with new_directory(directory) as partial:
            _fetch_jars(partial, jar, pom, packages, properties or {})
    return directory


def _has(directory: Path, jar: str) -> bool:
    return any(directory.glob(jar))


def _fetch_jars(directory: Path, jar: str, pom: Path, packages: Sequence[str], properties: Mapping[str, str]) -> None:
    maven = shutil.which("mvn")
    if not maven and not packages:
        raise OracleUnavailableError(f"mvn was not found to fetch {pom.name} with; install Apache Maven")
    if maven:
        done = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={directory}"),
                *(f"-D{name}={value}" for name, value in properties.items()),
            ],
            capture_output=True,
            text=True,
        )
    else:
        done = _fetch_with_spark(directory, packages)
    if done.returncode or not _has(directory, jar):
        raise OracleUnavailableError(
            f"{pom.name} could not be fetched with {'Maven' if maven else 'Spark'}; put its JARs and their "
            f"dependencies into a directory and name it in {JARS_VARIABLE}: {(done.stdout + done.stderr)[-2000:]}"
        )


def _fetch_with_spark(directory: Path, packages: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Let spark-submit resolve the packages for a program that does nothing, and take what it brought."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise OracleUnavailableError("neither mvn nor pyspark was found to fetch Kafka with; install Apache Maven")
    home = Path(pyspark.origin).parent
    with tempfile.TemporaryDirectory() as work:
        nothing = Path(work) / "nothing.py"
        nothing.touch()
        done = subprocess.run(
            [
                *(str(home / "bin" / "spark-submit"), "--packages", ",".join(packages)),
                *("--conf", f"spark.jars.ivy={work}", "--master", "local[1]", str(nothing)),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "SPARK_HOME": str(home)},
        )
        # Spark leaves Scala out of what it resolves, because it brings its own.
        for jar in (*Path(work).glob("jars/*.jar"), *home.glob("jars/scala-library-2.13*.jar")):
            shutil.copy(jar, directory)
    return done


def _compiled(jars: Path) -> Path:
    """Return the directory of our classes, compiled when their sources changed."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.java"))}
    if KAFKA_VERSION != REFERENCE_VERSION:
        sources = _for_later_release(sources, jars)
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    classes = jars / f"oracle-{digest}"
    if not classes.is_dir():
        with new_directory(classes) as partial, tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / path.name for path in sources]
            for file, content in zip(files, sources.values(), strict=True):
                file.write_text(content, encoding="utf-8")
            done = subprocess.run(
                [program("javac"), "--release", "17", "-cp", f"{jars}/*", "-d", str(partial), *map(str, files)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise OracleUnavailableError(f"the sources of the Kafka oracle do not compile: {done.stderr[-2000:]}")
    return classes


def _for_later_release(sources: Mapping[Path, str], jars: Path) -> dict[Path, str]:
    """Return the sources that a later release can have, with the imports of the classes that it has moved."""
    homes: dict[str, list[str]] = {}
    for jar in jars.glob("*kafka*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith(".class"):
                    package, _, own = name.removesuffix(".class").replace("/", ".").rpartition(".")
                    homes.setdefault(own.replace("$", "."), []).append(package)

    def moved(found: re.Match[str]) -> str:
        package, own = found[2], found[3]
        packages = homes.get(own, [package])
        return f"{found[1]}{package if package in packages else packages[0]}.{own};"

    kept = {path: text for path, text in sources.items() if path.name not in _OF_REFERENCE}
    return {path: _IMPORT.sub(moved, text) for path, text in kept.items()}


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Fill a directory aside and give it its name when it is whole, so that others see all of it or nothing."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=directory.name, dir=directory.parent))
    try:
        yield partial
        # Where it stands already someone else was faster, and theirs is as good.
        with suppress(OSError):
            partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def program(name: str) -> str:
    """Return the path of a program of the JDK."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home) / "bin")) if home else shutil.which(name)
    if found is None:
        raise OracleUnavailableError(f"{name} was not found; install a JDK 17 or later, or set JAVA_HOME to one")
    return found
