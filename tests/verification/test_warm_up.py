"""The warm-up of `verify` compiles the loops of every comparison, in one pass or in ranges of offsets."""

from __future__ import annotations

from sediment.verification import record_kernels
from sediment.verification.warm_up import warm_up_verification


def test_warming_up_compiles_the_loops_over_records_and_keys():
    warm_up_verification()
    for kernel in (record_kernels.merge_records, record_kernels.count_wrong_keys, record_kernels.join_keys):
        assert kernel.signatures, kernel
