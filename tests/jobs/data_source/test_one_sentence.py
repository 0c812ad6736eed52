"""Errors of the data source as Spark prints them."""

from __future__ import annotations

import os
import traceback

import pytest

from sediment.jobs.data_source.one_sentence import in_one_sentence
from sediment.segment_io.errors import CorruptBatchError, SedimentError


@pytest.fixture
def shown(monkeypatch):
    """Return what Spark prints of an error, once its tracebacks are hidden."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    def text(error):
        @in_one_sentence
        def fail():
            raise error

        with pytest.raises(type(error)) as raised:
            fail()
        assert os.environ["SPARK_HIDE_TRACEBACK"]
        return "".join(traceback.format_exception_only(raised.value))

    return text


def test_an_error_is_its_name_and_sentence_without_a_module(shown):
    error = CorruptBatchError("the batch fails its CRC", partition="t-0", offset=5, advice="restore it")
    assert shown(error) == "CorruptBatchError: the batch fails its CRC (partition t-0, offset 5); restore it\n"


def test_an_error_of_the_disk_is_a_sentence_too(shown):
    error = PermissionError(13, "Permission denied", "/data")
    assert shown(error) == "PermissionError: no permission for /data; run as the broker's user or as root\n"


def test_the_error_keeps_its_fields(shown):
    error = CorruptBatchError("the batch fails its CRC", partition="t-0")
    try:
        in_one_sentence(lambda: (_ for _ in ()).throw(error))()
    except SedimentError as raised:
        assert (raised.partition, raised.reason_code) == ("t-0", "corrupt-batch")
