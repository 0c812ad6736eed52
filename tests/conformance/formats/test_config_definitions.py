"""The file of Kafka's configs is what Kafka's classes of today say."""

from __future__ import annotations

import gzip
import json

import pytest

from sediment.server.config_descriptions import FILE
from tests.conformance.formats.config_definitions import config_definitions
from tests.conformance.oracle import REFERENCE_VERSION, kafka_jars

pytestmark = pytest.mark.conformance


def test_the_descriptions_of_configs_are_those_of_kafkas_classes() -> None:
    assert json.loads(gzip.decompress(FILE.read_bytes())) == config_definitions(kafka_jars(REFERENCE_VERSION))
