"""Sets of keys, as tasks receive them."""

from __future__ import annotations

import pickle

import pytest

from sediment.compaction.rewrite.key_set import KeySet
from sediment.segment_io.errors import UsageError


def test_a_set_sorts_its_keys_survives_pickling_and_does_not_show_them():
    keys = KeySet.of([b"secret", b"", b"a", b"secret"])
    again = pickle.loads(pickle.dumps(keys))
    assert [again.key(number) for number in range(len(again))] == [b"", b"a", b"secret"]
    assert repr(keys) == "KeySet()"
    with pytest.raises(UsageError):
        KeySet.of([b"a", "b"])  # type: ignore[list-item]
