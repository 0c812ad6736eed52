"""The Java that Spark runs: its command and its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from sediment.segment_io.errors import UsageError

MIN_JAVA = 17
INSTALL_JAVA = "install Java (for example: sudo apt-get install openjdk-17-jre-headless), or set JAVA_HOME"


def java_command() -> str:
    """Return the command that starts Java; like Spark's launcher, prefer the Java in $JAVA_HOME."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def check_java() -> None:
    if shutil.which(java_command()) is None:
        where = "JAVA_HOME names none" if os.environ.get("JAVA_HOME") else "none is on the PATH"
        raise UsageError(f"Spark needs Java {MIN_JAVA} or newer, but {where}", advice=INSTALL_JAVA)


def java_version() -> int | None:
    try:
        said = subprocess.run([java_command(), "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', said)
    return int(match[1]) if match else None
