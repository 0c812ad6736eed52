"""Settings with which several threads compare even the smallest partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sediment.jobs import verify
from sediment.verification import comparison, header_scan, record_rules


@contextmanager
def several_threads() -> Iterator[list[Counter[str] | None]]:
    """Compare partitions in up to three ranges; the list gets the result of every `count_in_ranges`."""
    counted: list[Counter[str] | None] = []
    count = record_rules.count_in_ranges

    def noted(*arguments):
        counted.append(count(*arguments))
        return counted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "available_slots", lambda: 3)
        patch.setattr(comparison, "LEAST_BYTES", 0)
        patch.setattr(header_scan, "PART_BYTES", 500)
        patch.setattr(record_rules, "count_in_ranges", noted)
        yield counted
