"""The transaction index of an open segment (kafka-log 01 §7.4; 07 IX-15, IX-18)."""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.open_transaction_index import OpenTransactionIndex


def test_ix_15_and_ix_18_a_transaction_index_goes_on_and_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.txnindex"
    (tmp_path / "a.log").touch()
    entries = [
        AbortedTxn(*fields)
        for fields in ((0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40), (4, 51, 60, 55))
    ]
    index = OpenTransactionIndex(path, Fs())
    assert index.index().transactions() == ()
    index.append(entries[:4])
    assert not index.index().collect(0, 32).transactions[3:]
    again = OpenTransactionIndex(path, Fs())
    again.append(entries[4:])
    assert path.stat().st_size == 170
    assert again.index().transactions() == tuple(entries)
    for cut, left in ((61, 5), (60, 4), (51, 4), (50, 3), (0, 0)):
        again.truncate_to(cut)
        assert again.index().transactions() == tuple(entries[:left])
