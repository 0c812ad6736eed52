"""Text of errors: a reason code for programs and one sentence for people."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from sediment.jobs.process.cancellation import StoppedError, was_stopped
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.printable import error_line
from sediment.segment_io.uris import public_uri

TASK_LOST = "task-lost"
_JVM_LOST = (
    "the JVM of Spark has ended during the run, for example because the system killed it for its use of memory; "
    "run again, with less memory for Spark or with --master 'local[1]'"
)
_WITHOUT_SPACE = " (`sediment expire` needs none)"
_NO_ANSWER = re.compile(r"An error occurred while calling [^\n]*")
_OF_THE_WORKER = "Error from python worker:"  # what the worker, or its daemon, printed before it could begin
_NO_SOCKET = "[CANNOT_OPEN_SOCKET]"
_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .+)?$")
_OF_SPARK = ("py4j.", "pyspark.")
_OF_THE_JVM = ("org.apache.spark.", "py4j.", "java.", "scala.")


def describe(error: SedimentError | OSError, *, without_space: str = _WITHOUT_SPACE) -> tuple[str, str]:
    """Return the reason code and the sentence of an error; the code of `CorruptBatchError` is `corrupt-batch`.

    `without_space` says what can be done on a full disk.
    """
    if isinstance(error, SedimentError):
        return error.reason_code, str(error)
    name = None if error.filename is None else error_line(public_uri(str(error.filename)))
    where = "" if name is None else f" ({name})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "no-space",
            f"the disk is full{where}; free some space and run again{without_space}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no-permission", f"no permission{f' for {name}' if name else ''}; run as the broker's user or as root"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "io-error", f"too many open files{where}; raise the limit, for example: ulimit -n 65536"
    return "io-error", f"{error_line(error.strerror or str(error))}{where}"


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The reason why a command ended without a result; `is_fault` is True for a bug in Sediment."""

    reason_code: str
    sentence: str
    is_fault: bool = False


def describe_in_expire(error: SedimentError | OSError) -> tuple[str, str]:
    """Return what `describe` does, for a step of `expire` that needs space: the archive, or the originals."""
    return describe(error, without_space="; `sediment expire` without --archive and --keep-originals needs none")


def error_text_of(error: BaseException) -> ErrorText:
    if was_stopped(error):
        return ErrorText(*describe(StoppedError()))
    if _is_of_lost_jvm(error):
        return ErrorText("spark-failed", _JVM_LOST)
    if isinstance(error, SedimentError | OSError):
        return ErrorText(*describe(error))
    if isinstance(error, MemoryError):
        return ErrorText("no-memory", "there is not enough memory; free some and run again")
    if type(error).__module__.startswith(_OF_SPARK):
        return ErrorText("spark-failed", f"Spark failed: {error_line(_raised(error))}", is_fault=True)
    text = error_line(f"Sediment failed: {type(error).__name__}: {first_line(error)}")
    return ErrorText("fault", text, is_fault=True)


def describe_lost_task(error: Exception | None) -> tuple[str, str]:
    """Return the reason code and the sentence of a task that failed in Spark, after all retries, or in this process."""
    if isinstance(error, ConnectionError) or _is_of_lost_jvm(error):
        return TASK_LOST, _JVM_LOST
    if error is None or type(error).__module__.startswith(_OF_SPARK):
        return TASK_LOST, f"Spark gave up on the task: {error_line(_raised(error))}"
    return TASK_LOST, error_line(f"the task failed: {type(error).__name__}: {first_line(error)}")


def _is_of_lost_jvm(error: BaseException | None) -> bool:
    """Return True if Py4J or PySpark got no answer.

    With an answer, the error is of another class or has the text of the JVM.  Py4J raises the error of its socket as it
    is if it cannot connect.
    """
    if isinstance(error, ConnectionError | EOFError):
        return _is_raised_below(error, _OF_SPARK)
    if type(error).__module__.startswith("pyspark."):
        return str(error).startswith(_NO_SOCKET)
    if not type(error).__module__.startswith("py4j."):
        return False
    return type(error).__name__ == "Py4JNetworkError" or bool(_NO_ANSWER.fullmatch(str(error).strip()))


def _is_raised_below(error: BaseException, packages: tuple[str, ...]) -> bool:
    """Return True if the error came out of code of one of `packages`."""
    frame = error.__traceback__
    while frame is not None:
        if str(frame.tb_frame.f_globals.get("__name__")).startswith(packages):
            return True
        frame = frame.tb_next
    return False


def _raised(error: BaseException | None) -> str:
    """Return the line with the worker's own error in Spark's error text, or else the first line that says something."""
    lines = [line.strip() for line in str(error or "no reason given").splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line) and not line.startswith(_OF_THE_JVM)]
    if raised:
        return raised[-1]
    if _OF_THE_WORKER in lines[:-1]:
        return lines[lines.index(_OF_THE_WORKER) + 1]
    told = [line.removeprefix(": ") for line in lines if not _NO_ANSWER.fullmatch(line)]
    return (told or lines)[0]


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
