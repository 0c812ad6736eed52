"""`sediment serve` in a process of its own, and what clients saw of the log directory in tests/data/served.

The directory is that of one stopped KRaft node of Kafka 4.2.0: five codecs, headers and nulls, a compacted topic,
groups with offsets, and transactions that are committed, aborted and open.  `tests.e2e.served_fixture` made it;
`expected` is what the clients read from the broker itself.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from tests.archives import unpack
from tests.consumers import (
    COMMITTED,
    UNCOMMITTED,
    Records,
    committed_offsets,
    confluent_records,
    ends,
    kafka_python_offsets_of_times,
    kafka_python_records,
    offsets_of_times,
)
from tests.waiting import LIMIT_SECONDS

_LISTENING = re.compile(r"listening on (\S+:\d+)")


@dataclass
class Served:
    """A server that answers at `bootstrap`; `said` are the lines on stderr so far."""

    bootstrap: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    is_ended: bool = False

    def stop(self) -> None:
        """End the server as an operator does (SIGTERM); its status is 0."""
        self.is_ended = True
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT_SECONDS) == 0, self.said

    def kill(self) -> None:
        """End the server at once (kill -9)."""
        self.is_ended = True
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(*arguments: object, under: Sequence[str] = ()) -> Iterator[Served]:
    """Run `sediment serve ARGUMENTS` on a free port, and stop it with SIGTERM unless the body has ended it.

    `under` is a command that runs in its place and becomes it, as `env` does.
    """
    serve = [sys.executable, "-m", "sediment.jobs.cli", "serve", *map(str, arguments), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*under, *serve],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line.rstrip("\n"))
            found = _LISTENING.search(line)
            if found:
                break
        else:
            raise AssertionError(f"serve ended with status {process.wait()}: {said}")
        reader = threading.Thread(target=_collect, args=(process, said), daemon=True)
        reader.start()
        served = Served(found[1], process, said)
        yield served
        if not served.is_ended:
            served.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _collect(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    said.extend(line.rstrip("\n") for line in process.stderr)


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, modification time and content of every file below `directory`."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            stat = path.stat()
            found[str(path.relative_to(directory))] = (stat.st_ino, stat.st_mtime_ns, path.read_bytes())
    return found


# ---------------------------------------------------------------------------------------------------- the log directory
DATA = Path(__file__).parent / "data" / "served"
START_MS = 1_750_000_000_000
TIMES_MS = (0, START_MS, START_MS + 5000, START_MS + 9990, START_MS + 20_000)
TOPICS = {"orders": 2, "payments": 2, "prices": 1, "empty": 1}
GROUPS = ("billing", "audit")


def unpacked(target: Path) -> Path:
    """Unpack the log directory at `target`."""
    with tarfile.open(DATA / "log-dir.tar.xz") as archive:
        unpack(archive, target)
    return target


def expected() -> dict[str, Any]:
    """Return the answers of `answers_of` for the broker itself."""
    found: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
    return found


def partitions() -> list[str]:
    """Return the names of all partitions of the topics."""
    return [f"{topic}-{partition}" for topic, count in TOPICS.items() for partition in range(count)]


def answers_of(bootstrap: str) -> dict[str, Any]:
    """Return what both clients see of a server of the directory, for JSON; they have to agree."""
    names = partitions()
    found_ends = ends(bootstrap, names)
    records = {}
    for isolation, end in ((COMMITTED, 2), (UNCOMMITTED, 1)):
        seen = confluent_records(bootstrap, names, isolation)
        until = {name: found_ends[name][end] for name in names}
        assert kafka_python_records(bootstrap, names, isolation, until) == seen
        records[isolation] = as_json(seen)
    times = {}
    for time_ms in TIMES_MS:
        wanted = dict.fromkeys(names, time_ms)
        offsets = offsets_of_times(bootstrap, wanted)
        answers = kafka_python_offsets_of_times(bootstrap, wanted)
        times[str(time_ms)] = {name: [offsets[name], list(answers[name] or ())] for name in names}
    groups = {group: {n: list(o) for n, o in committed_offsets(bootstrap, group, names).items()} for group in GROUPS}
    return {"ends": {n: list(e) for n, e in found_ends.items()}, "records": records, "times": times, "groups": groups}


def as_json(records: Records) -> dict[str, Any]:
    """Return records as `expected` has them."""
    return {name: [_plain(astuple(each)) for each in seen] for name, seen in records.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
