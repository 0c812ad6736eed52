"""The spark-submit of docs/operate/cluster.md for Kubernetes: Spark's own client makes the driver's pod from it.

The server takes what the client asks for, and creates nothing.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest
from kubernetes_validate.utils import all_versions, validate

from sediment.jobs.spark.session import QUICK_JVM
from tests.container.manifests import LEAST_KUBERNETES, ROOT
from tests.project.distributions import bare_environment
from tests.waiting import LIMIT_SECONDS

PAGE = ROOT / "docs" / "operate" / "cluster.md"
MASTER = "k8s://https://kubernetes:6443"
CLAIM, MOUNT = "kafka-data-0", "/mnt/kafka-data"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An address, the objects that a client wanted to create there, and the paths of these requests."""

    address: str
    wanted: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.wanted.append(asked)
            found.paths.append(self.path)
            name = asked["metadata"]["name"]
            created = {"uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
            self._answer(201, asked | {"metadata": asked["metadata"] | created})

        def do_PATCH(self) -> None:
            self.do_POST()

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = ApiServer(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


def command_of_the_page() -> list[str]:
    text = PAGE.read_text()
    start = text.index(f"spark-submit --master {MASTER}")
    return shlex.split(text[start : text.index("\n```", start)].replace("\\\n", " "))


def test_the_command_of_the_page_makes_a_pod_that_kubernetes_accepts(api_server: ApiServer, tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    _, *words = (word.replace(MASTER, f"k8s://{api_server.address}") for word in command_of_the_page())
    done = subprocess.run(
        [home / "bin" / "spark-submit", "--conf", "spark.kubernetes.submission.waitAppCompletion=false", *words],
        env=bare_environment(tmp_path, SPARK_HOME=str(home), SPARK_SUBMIT_OPTS=QUICK_JVM),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (pod,) = (each for each in api_server.wanted if each["kind"] == "Pod")
    for version in (LEAST_KUBERNETES, all_versions()[-1]):
        for each in api_server.wanted:
            validate(each, version, strict=True)
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert all("/namespaces/kafka/" in path for path in api_server.paths)
    assert spec["serviceAccountName"] == "spark"
    assert container["image"] == "registry.example/sediment-spark:0.1.0"
    assert container["args"][0] == "driver"
    assert container["args"][-4:] == ["local:///opt/sediment/jobs/cli.py", "compact", f"{MOUNT}/logs", "--json"]
    claims = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName") for each in spec["volumes"]}
    mounts = {each["mountPath"]: claims[each["name"]] for each in container["volumeMounts"]}
    assert mounts[MOUNT] == CLAIM
    (settings,) = (each["data"]["spark.properties"] for each in api_server.wanted if each["kind"] == "ConfigMap")
    for wanted in (
        f"spark.kubernetes.executor.volumes.persistentVolumeClaim.kafka.options.claimName={CLAIM}",
        f"spark.kubernetes.executor.volumes.persistentVolumeClaim.kafka.mount.path={MOUNT}",
        "spark.pyspark.python=/opt/sediment/bin/python",
    ):
        assert wanted in settings.splitlines()
