"""The configs that a server describes, written from the ConfigDefs in Kafka's classes.

`make schemas` writes `sediment/server/kafka_configs.json.gz`.  The documentation is Kafka's text (see NOTICE).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from sediment.server.config_descriptions import FILE
from tests.conformance.oracle import REFERENCE_VERSION, kafka_jars, program

_SOURCE = Path(__file__).with_name("ConfigDefinitions.java")
_NO_DEFAULT = "-"


def config_definitions(jars: Path) -> dict[str, Any]:
    """Return the content of the file, from the reference release's JARs in `jars`."""
    class_path = os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))
    done = subprocess.run(
        [program("java"), "-cp", class_path, str(_SOURCE)], capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, Any] = {"kafka": REFERENCE_VERSION}
    for line in done.stdout.splitlines():
        resource, name, kind, is_internal, default, documentation = line.split("\t")
        found.setdefault(resource, []).append(
            [
                name,
                kind,
                is_internal == "true",
                None if default == _NO_DEFAULT else _decoded(default),
                _decoded(documentation),
            ]
        )
    return found


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def packed(definitions: dict[str, Any]) -> bytes:
    """Return the bytes of the file; the same definitions always have the same bytes."""
    text = json.dumps(definitions, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def main() -> None:
    """Write the file."""
    FILE.write_bytes(packed(config_definitions(kafka_jars(REFERENCE_VERSION))))


if __name__ == "__main__":
    main()
