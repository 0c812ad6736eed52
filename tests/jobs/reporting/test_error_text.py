"""Error texts for people."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from sediment.jobs.reporting.error_text import describe, describe_in_expire, describe_lost_task, error_text_of

SPARKS_STORY = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in main
    process()
ModuleNotFoundError: No module named 'numba'

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:665)
Driver stacktrace:
"""


def test_a_lost_task_is_described_by_the_error_of_its_worker():
    code, sentence = describe_lost_task(Py4JError(SPARKS_STORY))
    assert (code, sentence) == ("task-lost", "Spark gave up on the task: ModuleNotFoundError: No module named 'numba'")


@pytest.mark.parametrize(
    ("story", "told"),
    [
        (
            """SparkException:\u0020
Error from python worker:
  /usr/bin/python3.11: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')
PYTHONPATH was:
  /x/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from a.b's stdout.
\tat org.apache.spark.api""",
            "/usr/bin/python3.11: Error while finding module specification for 'a.b' "
            "(ModuleNotFoundError: No module named 'a')",
        ),
        (
            'java.io.IOException: Cannot run program "/no/py": error=2\n\tat java.base/x',
            'org.apache.spark.SparkException: Job aborted: java.io.IOException: Cannot run program "/no/py": error=2',
        ),
    ],
)
def test_a_task_whose_worker_cannot_begin_is_described_by_what_the_worker_or_spark_said(story: str, told: str) -> None:
    error = Py4JError(
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        f": org.apache.spark.SparkException: Job aborted: {story}\n\nDriver stacktrace:\n\tat org.apache.spark.x"
    )
    assert describe_lost_task(error)[1] == f"Spark gave up on the task: {told}"


def test_a_lost_task_without_a_worker_error_is_described_by_the_first_line():
    error = Py4JError("Job 3 cancelled part of cancelled job group a1\n\tat org.apache.spark.Foo")
    assert describe_lost_task(error)[1] == "Spark gave up on the task: Job 3 cancelled part of cancelled job group a1"
    assert describe_lost_task(None)[1] == "Spark gave up on the task: no reason given"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_the_command_that_frees_space_on_it(number: int) -> None:
    code, sentence = describe(OSError(number, os.strerror(number), "/data/t-0/0.log"))
    wanted = "the disk is full (/data/t-0/0.log); free some space and run again (`sediment expire` needs none)"
    assert (code, sentence) == ("no-space", wanted)
    _, sentence = describe_in_expire(OSError(number, os.strerror(number), "/archive/x"))
    wanted = "the disk is full (/archive/x); free some space and run again; `sediment expire` without --archive and "
    assert sentence == f"{wanted}--keep-originals needs none"


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o33.parallelize"),
        Py4JNetworkError("Error while sending or receiving"),
        ConnectionRefusedError(111, "Connection refused"),
        PySparkRuntimeError(errorClass="CANNOT_OPEN_SOCKET", messageParameters={"errors": "[Errno 111] refused"}),
    ],
)
def test_a_jvm_that_has_ended_is_named_and_is_no_bug(error: Exception):
    code, sentence = describe_lost_task(error)
    assert (code, sentence.partition(",")[0]) == ("task-lost", "the JVM of Spark has ended during the run")
    if not isinstance(error, ConnectionError):
        told = error_text_of(error)
        assert (told.reason_code, told.sentence, told.is_fault) == ("spark-failed", sentence, False)


def error_of_py4j_without_a_jvm() -> ConnectionError:
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        parameters = JavaParameters(port=unused.getsockname()[1]), PythonParameters(port=0, eager_load=False)
        with pytest.raises(ConnectionError) as raised:
            _ = ClientServer(*parameters).jvm.System
    return raised.value


def test_a_jvm_to_which_py4j_cannot_connect_has_ended_but_another_refused_connection_is_told_as_it_is() -> None:
    told = error_text_of(error_of_py4j_without_a_jvm())
    assert (told.reason_code, told.is_fault) == ("spark-failed", False)
    assert told.sentence.startswith("the JVM of Spark has ended during the run,")
    other = error_text_of(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
    assert (other.reason_code, other.sentence) == ("io-error", "Connection refused")
