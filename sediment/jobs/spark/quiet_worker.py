"""Suppression of messages from Spark's Python workers after Spark has closed their socket, for example at a LIMIT.

`pyspark.daemon` prints a traceback when the last flush of such a worker fails.  The query is already complete, and the
worker would end anyway.  Workers of Sediment's own daemon (`worker_daemon`) do not need this module.
"""

from __future__ import annotations

import sys
import traceback

_DAEMON = "pyspark.daemon"


class _DaemonTraceback:
    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


def silence_closed_sockets() -> None:
    """Print no traceback for a closed socket in a worker of `pyspark.daemon`; change nothing in other processes."""
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        main.traceback = _DaemonTraceback  # type: ignore[attr-defined]
