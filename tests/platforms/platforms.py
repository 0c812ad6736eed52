"""The platforms of the suite: which Python, Java, Spark and packages run together, and under which conditions.

Sediment is tested with every value of each column, not with every combination.
"""

from __future__ import annotations

from dataclasses import dataclass

CONSTRAINTS, LOWEST, NEWEST = "constraints.txt", "lowest", "newest"


@dataclass(frozen=True, slots=True)
class Platform:
    """`spark` is a minor release, or a version; `packages` says which releases of the dependencies are installed."""

    python: str
    java: int
    spark: str
    packages: str

    @property
    def name(self) -> str:
        return f"python-{self.python} java-{self.java} spark-{self.spark} {self.packages}"

    @property
    def has_data_sources(self) -> bool:
        return not self.spark.startswith("3.")


USUAL = Platform("3.11", 17, "4.2", CONSTRAINTS)

PLATFORMS = (
    USUAL,
    Platform("3.11", 17, "4.0", LOWEST),
    Platform("3.11", 17, "3.5", NEWEST),
    Platform("3.12", 17, "4.1", NEWEST),
    Platform("3.13", 25, "4.3", NEWEST),
    Platform("3.14", 21, "4.3", NEWEST),
    Platform("3.14", 25, "4.2", CONSTRAINTS),
)

CONDITIONS = {
    "no home": "no writable home, and another user than the one that installed",
    "read-only": "read-only installation",
    "C locale": "C locale",
    "spaces": "spaces and other letters in the paths of the environment and of the log directory",
    "unnamed user": "user id without a name, and no HOME",
    "small": "1 CPU, and 2 GB of memory for a log of 256 MB",
}
"""What is special, by the name of the row; the versions are those of USUAL."""

AARCH64 = "aarch64"
AIRFLOWS = {"Airflow 3": "airflow-constraints.txt", "Airflow 2": "airflow-2-constraints.txt"}
"""The file of conf/ with the packages of each Airflow."""

NAMES = (*(platform.name for platform in PLATFORMS), *CONDITIONS, AARCH64, *AIRFLOWS)
"""The rows of the table, in their order."""
