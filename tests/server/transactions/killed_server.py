"""A server that kills itself at one point of the end of a transaction: `killed_server.py POINT PYTHON -m MODULE ...`.

prepared    the decision is stored, and no marker is written
marked once one partition has its marker
marked      all partitions have their markers
complete    the end is appended
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from sediment.server.transactions.marker_writer import MarkerWriter
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator

POINTS = ("prepared", "marked once", "marked", "complete")


def _killing(act: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def kill(*arguments: Any, **keywords: Any) -> None:
        if after:
            act(*arguments, **keywords)
        os.kill(os.getpid(), signal.SIGKILL)

    return kill


def main() -> None:
    """Run the server of the command line."""
    point = sys.argv[1]
    if point == "prepared":
        MarkerWriter.write = _killing(MarkerWriter.write, after=False)  # type: ignore[method-assign]
    elif point == "marked once":
        MarkerWriter._append = _killing(MarkerWriter._append, after=True)  # type: ignore[method-assign]
    else:
        store_end = _killing(TransactionCoordinator._store_end, after=point == "complete")
        TransactionCoordinator._store_end = store_end  # type: ignore[method-assign]
    module, sys.argv[:] = sys.argv[4], sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
