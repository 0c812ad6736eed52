"""The process that Spark forks its Python workers from, warmed up (`spark.python.daemon.module`).

Spark starts it once per executor and speaks to it over stdin and stdout.  Loading and running every compiled kernel
here, before the first fork, makes them the workers' by inheritance.

Invariant: nothing but Spark's own protocol reaches stdout, and a failure to warm up costs time, not the run.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback

from pyspark.daemon import manager

_KERNELS = "sediment.compaction.warm_up"


def warm_up() -> None:
    """Run the kernels once; what goes wrong is told on stderr and comes back in the task that needs them."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            importlib.import_module(_KERNELS).warm_up()
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    warm_up()
    manager()
