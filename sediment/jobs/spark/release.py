"""The releases of Python, Java and Spark that Sediment is tested with, and one sentence for every other one.

`make suite NAME=platforms` tries each of them; docs/reference/compatibility.md says with which result.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JAVAS = (17, 21, 25)
SPARKS = ("3.5", "4.0", "4.1", "4.2", "4.3")
_FIRST_WITH_SOURCES = "4.0"


def has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def spark_version() -> str:
    """Return the version of the PySpark that this process imports; a download of Spark has no metadata of it."""
    from pyspark import __version__

    return str(__version__)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def is_before(version: str, first: str) -> bool:
    return _numbers(version) < _numbers(first)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, minor(version).split(".")))


def untested_python(version: str) -> str | None:
    return _untested("Python", minor(version), PYTHONS)


def untested_java(version: int) -> str | None:
    return _untested("Java", str(version), list(map(str, JAVAS)))


def untested_spark(version: str) -> str | None:
    return _untested("Spark", minor(version), SPARKS)


def _untested(what: str, release: str, tested: Sequence[str]) -> str | None:
    if release in tested:
        return None
    return f"Sediment is tested with {what} {', '.join(tested[:-1])} and {tested[-1]}, but this is {what} {release}"


def check_spark() -> None:
    """Refuse a Spark below the first that is tested; a later one than the last is only a warning of `doctor`."""
    version = spark_version()
    if is_before(version, SPARKS[0]):
        raise UsageError(
            f"Sediment needs Spark {SPARKS[0]} or newer, but this is Spark {version}", advice=install_command("spark")
        )


def no_data_source() -> UsageError:
    return UsageError(
        f"the format kafka-log needs Spark {_FIRST_WITH_SOURCES} or newer, but this is Spark {spark_version()}",
        advice=f"{install_command('spark')}, or read with `sediment dump`, which needs no Spark",
    )


def has_data_sources(version: str) -> bool:
    return not is_before(version, _FIRST_WITH_SOURCES)
