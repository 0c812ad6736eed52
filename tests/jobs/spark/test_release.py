"""Releases of Spark: the first that is tested, and what older ones are refused with."""

from __future__ import annotations

import pytest

from sediment.jobs.spark.release import check_spark, has_data_sources, is_before, no_data_source
from sediment.segment_io.errors import UsageError


def test_releases_are_compared_as_numbers() -> None:
    assert is_before("3.5.9", "4.0") and is_before("4.9.0", "4.10") and not is_before("4.10.1", "4.9")
    assert has_data_sources("4.0.0.dev1") and not has_data_sources("3.5.9")


def test_a_spark_before_the_first_that_is_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.4.2")
    with pytest.raises(UsageError, match=r"needs Spark 3.5 or newer, but this is Spark 3.4.2; pip install"):
        check_spark()
    for version in ("3.5.0", "4.3.1", "5.0.0"):
        monkeypatch.setattr("pyspark.__version__", version)
        check_spark()


def test_kafka_log_on_a_spark_without_data_sources_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    assert str(no_data_source()).startswith("the format kafka-log needs Spark 4.0 or newer, but this is Spark 3.5.9;")
