"""HDFS on loopback: one name node and one data node of Hadoop, each a process, which no other program reaches."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from sediment.segment_io.stores import Store
from tests.conformance.oracle import hadoop_jars, program
from tests.e2e.kraft import free_port

_START_SECONDS = 180
_SERVERS = "org.apache.hadoop.hdfs.server"
_LOGGING = ("slf4j-api-2*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")
_ANY_PORT = "127.0.0.1:0"


@contextmanager
def running_hdfs(home: Path) -> Iterator[str]:
    """Yield the URI of a new HDFS; its servers end with the block.

    Raises:
        OracleUnavailableError: Java or the JARs cannot be had.
    """
    port = free_port()
    uri = f"hdfs://127.0.0.1:{port}"
    folder = home / "conf"
    folder.mkdir(parents=True)
    _write(folder / "core-site.xml", {"fs.defaultFS": uri})
    _write(
        folder / "hdfs-site.xml",
        {
            "dfs.namenode.name.dir": f"{home}/name",
            "dfs.datanode.data.dir": f"{home}/data",
            "dfs.replication": "1",
            "dfs.namenode.http-address": _ANY_PORT,
            "dfs.datanode.address": _ANY_PORT,
            "dfs.datanode.http.address": _ANY_PORT,
            "dfs.datanode.ipc.address": _ANY_PORT,
        },
    )
    command = [program("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", _class_path(folder)]
    name_node = [*command, f"{_SERVERS}.namenode.NameNode"]
    subprocess.run([*name_node, "-format", "-nonInteractive"], check=True, capture_output=True, timeout=_START_SECONDS)
    with ExitStack() as stack:
        stack.enter_context(_process(name_node, home / "name-node.log"))
        stack.enter_context(_process([*command, f"{_SERVERS}.datanode.DataNode"], home / "data-node.log"))
        _wait_until_written(uri, port)
        yield uri


def _write(path: Path, properties: Mapping[str, str]) -> None:
    lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))


def _class_path(folder: Path) -> str:
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    sparks = Path(pyspark.origin).parent / "jars"
    logging = [jar for pattern in _LOGGING for jar in sparks.glob(pattern)]
    hadoops = [jar for jar in sorted(hadoop_jars().glob("*.jar")) if not jar.name.startswith("slf4j-")]
    return os.pathsep.join(map(str, [folder, *logging, *hadoops]))


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.kill()


def _wait_until_written(uri: str, port: int) -> None:
    """Wait until the name node listens and the data node takes a file."""
    deadline = time.monotonic() + _START_SECONDS
    found: OSError | None = None
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            listens = probe.connect_ex(("127.0.0.1", port)) == 0
        if listens:
            try:
                Store(uri).write("probe", [b"x"])
                return
            except OSError as error:
                found = error
        time.sleep(0.5)
    raise AssertionError(f"HDFS did not start at {uri}: {found}")
