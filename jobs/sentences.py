"""Errors as people and programs are told them: a reason code and one sentence."""

from __future__ import annotations

import errno
import re

from sediment.segment_io.errors import SedimentError

TASK_LOST = "task-lost"
_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .+)?$")
_OF_THE_JVM = ("org.apache.spark.", "py4j.", "java.", "scala.")


def told(error: SedimentError | OSError) -> tuple[str, str]:
    """Reason code and sentence of an error: `CorruptBatchError` is `corrupt-batch`."""
    if isinstance(error, SedimentError):
        return error.reason_code, str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no-space", f"the disk is full ({error.filename}); free some space and run again"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no-permission", f"no permission for {error.filename}; run as the broker's user or as root"
    return "io-error", f"{error.strerror or error} ({error.filename})"


def task_lost(error: Exception | None) -> tuple[str, str]:
    """Reason code and sentence where Spark gave up on a task: what the worker raised, out of all that Spark tells."""
    lines = [line.strip() for line in str(error or "no reason given").splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line) and not line.startswith(_OF_THE_JVM)]
    return TASK_LOST, f"Spark gave up on the task: {(raised or lines)[-1 if raised else 0]}"


def first_line(error: BaseException) -> str:
    """The first line of what a library's error says, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
