"""Sediment: Apache Kafka log directories compacted, expired, repaired and explained on Spark.

`sediment.records` reads and builds record batches.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sediment import records

__all__ = ["__version__", "records"]
__version__ = "0.1.0"

_MODULES = frozenset({"records"})


def __getattr__(name: str) -> Any:
    """Import a module of the API at its first use, so that `import sediment` stays cheap."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
