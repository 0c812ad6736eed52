"""The log of the driver under spark-submit on a cluster: the messages of this package go to log4j, as Spark's own do.

There, the cluster's log4j2.properties decides where they are written: by default to stderr, but often to files that a
cluster manager collects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sediment.jobs.process.cancellation import is_stopping

_OURS = "sediment"
_METHODS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"), (logging.NOTSET, "debug"))


def driver_log(sc: Any) -> Callable[[logging.LogRecord, str], bool]:
    """Return a function that gives a message of this package to log4j, and returns False for every other message."""
    log4j = sc._jvm.org.apache.logging.log4j
    settings = log4j.LogManager.getContext(False).getConfiguration()
    if settings.getLoggerConfig(_OURS).getName() != _OURS:
        # The options of the command have chosen the messages; `spark.log.level` is for Spark's own.
        log4j.core.config.Configurator.setLevel(_OURS, log4j.Level.DEBUG)

    def take(record: logging.LogRecord, text: str) -> bool:
        if is_stopping() or record.name.partition(".")[0] != _OURS:
            return False
        method = next(name for level, name in _METHODS if record.levelno >= level)
        try:
            getattr(log4j.LogManager.getLogger(record.name), method)(text)
        except Exception:
            return False  # the JVM has ended
        return True

    return take
