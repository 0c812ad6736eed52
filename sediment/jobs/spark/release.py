"""The release of Spark that this package is made for, and what others lack."""

from __future__ import annotations

from importlib.metadata import version

from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command

SUPPORTED = "4.2"
"""The minor release of Spark that pyproject.toml allows and that the tests run on."""


def spark_minor() -> str:
    return ".".join(version("pyspark").split(".")[:2])


def no_data_source() -> UsageError:
    return UsageError(
        f"the format kafka-log needs Spark {SUPPORTED}, but this is Spark {version('pyspark')}",
        advice=f"{install_command('spark')}, or read with `sediment dump`, which needs no Spark",
    )
