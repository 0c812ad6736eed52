"""What a process lacks whose user id has no name, as in containers of OpenShift: a home, and a user for Spark."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping


def has_name() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def give_home() -> None:
    """Set HOME to /, as container runtimes do, if nothing names a home; nothing can then be cached there."""
    if "HOME" not in os.environ and not has_name():
        os.environ["HOME"] = "/"


def variables_for_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without which Spark's JVM does not start, because Java knows neither a name nor a home."""
    if has_name():
        return {}
    name = environment.get("SPARK_USER") or environment.get("HADOOP_USER_NAME") or str(os.getuid())
    home = environment.get("HOME", "")
    options = environment.get("SPARK_SUBMIT_OPTS", "")
    if "-Duser.home=" not in options:
        options = f"{options} -Duser.home={home if home.startswith('/') else tempfile.gettempdir()}".strip()
    return {"SPARK_USER": name, "HADOOP_USER_NAME": name, "SPARK_SUBMIT_OPTS": options}
