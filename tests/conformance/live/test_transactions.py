"""Random sequences of coordinator requests: the same answers and states as those of Kafka's own coordinator."""

from __future__ import annotations

import os

import pytest

from tests.conformance.live.transaction_sequences import RECORDED_SEQUENCES, random_sequence
from tests.conformance.oracle import KafkaOracle
from tests.server.transactions.coordinator_steps import first_difference

SEQUENCES = int(os.environ.get("SEDIMENT_CONFORMANCE_TRANSACTIONS", "1000"))


@pytest.mark.conformance
def test_random_sequences_are_answered_as_kafka_answers_them(oracle: KafkaOracle) -> None:
    for seed in range(RECORDED_SEQUENCES, RECORDED_SEQUENCES + SEQUENCES):
        assert first_difference(random_sequence(seed, oracle)) is None, seed
