"""The releases of Kafka whose directories the suite writes, and what each of them can do."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tests.conformance.oracle import fetched_jars, new_directory, program

_JAVA = Path(__file__).parent / "java"
_CODECS = ("none", "gzip", "snappy", "lz4")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kafka; `with_zookeeper` tells where its cluster keeps the metadata."""

    version: str
    with_zookeeper: bool = False

    def __str__(self) -> str:
        return f"{self.version}-{'zookeeper' if self.with_zookeeper else 'kraft'}"

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))

    @property
    def codecs(self) -> tuple[str, ...]:
        return (*_CODECS, "zstd") if self.number >= (2, 1) else _CODECS

    @property
    def old_formats(self) -> dict[str, str]:
        """Topics whose messages have formats 0 and 1, with their message.format.version."""
        return {"format0": "0.9.0", "format1": "0.10.0"} if self.number < (3,) else {}

    @property
    def has_dynamic_broker_configs(self) -> bool:
        return self.number >= (2, 4)

    @property
    def tools_ask_brokers(self) -> bool:
        """True if kafka-configs.sh asks a broker for the configs of topics, and not ZooKeeper."""
        return self.number >= (2, 5)

    def class_path(self) -> str:
        """Return the class path of its broker, tools and ZooKeeper, and of VersionClient, brought at the first call.

        Raises:
            OracleUnavailableError: Maven cannot bring them.
        """
        scala = "2.12" if self.number < (2, 4) else "2.13"
        jars = fetched_jars(
            platformdirs.user_cache_path("sediment") / f"release-{self.version}",
            f"*kafka_{scala}-{self.version}.jar",
            _JAVA / "pom.xml",
            properties={"kafka.version": self.version, "scala.version": scala},
        )
        sources = [_JAVA / "VersionClient.java"]
        if self.has_dynamic_broker_configs:
            sources.append(_JAVA / "AlterConfigs.java")
        return os.pathsep.join((str(_compiled(sources, jars)), *map(str, sorted(jars.glob("*.jar")))))


def _compiled(sources: Sequence[Path], jars: Path) -> Path:
    """Return the directory of the clients, compiled for the release when their sources changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = jars / f"clients-{digest}"
    if not classes.is_dir():
        with new_directory(classes) as partial:
            subprocess.run(
                [program("javac"), "--release", "17", "-cp", f"{jars}/*", "-d", partial, *sources], check=True
            )
    return classes


RELEASES = (
    Release("0.11.0.3", with_zookeeper=True),
    Release("2.4.1", with_zookeeper=True),
    Release("2.8.2", with_zookeeper=True),
    Release("3.3.2"),
    Release("3.6.2"),
    Release("3.9.2", with_zookeeper=True),
    Release("3.9.2"),
    Release("4.0.2"),
    Release("4.1.2"),
    Release("4.3.1"),
    Release("4.4.0"),
)
"""From the oldest to the newest; a directory of each one is a case."""
