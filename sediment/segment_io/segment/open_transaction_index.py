"""The transaction index of an open segment: entries are appended to its file, and reads load the whole file.

    new file             created by the first aborted transaction of the segment; never preallocated
    append               in the order of the ABORT markers; an incomplete last entry is overwritten
    truncate_to          cuts the file before the first entry that ends at or above an offset
    look-up              `format.transaction_index.collect_aborted`
    check                `format.index_sanity.check_last_offsets`, by a load

Source: kafka-log 01 §7.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sediment.segment_io.format.layout import TRANSACTION_ENTRY_BYTES
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    encode_transaction_index,
    parse_transaction_index,
)
from sediment.segment_io.fs import Fs, OpenFile


class OpenTransactionIndex:
    def __init__(self, path: Path, fs: Fs) -> None:
        self.path = path
        self._fs = fs
        self._file: OpenFile | None = None
        self._index: TransactionIndex | None = None

    def index(self) -> TransactionIndex:
        if self._index is None:
            data = self._fs.read_bytes(self.path) if self._fs.exists(self.path) else b""
            self._index = parse_transaction_index(data, path=str(self.path))
        return self._index

    def append(self, transactions: Iterable[AbortedTxn]) -> None:
        """Add entries; their markers must follow all earlier markers."""
        entries = encode_transaction_index(transactions)
        if entries:
            at = len(self.index()) * TRANSACTION_ENTRY_BYTES
            if self._file is None:
                self._file = self._fs.create_file(self.path, like=self.path.with_suffix(SegmentFileKind.LOG))
            self._file.write(entries, at)
            self._index = None

    def truncate_to(self, offset: int) -> None:
        beyond = np.flatnonzero(self.index().last_offsets >= offset)
        if beyond.size:
            if self._file is None:
                self._file = self._fs.open_file(self.path)
            self._file.resize(int(beyond[0]) * TRANSACTION_ENTRY_BYTES)
            self._index = None

    def changed_file(self) -> OpenFile | None:
        return self._file

    def moved(self, path: Path) -> None:
        self.path = path
        if self._file is not None:
            self._file.path = path

    def close_file(self) -> None:
        """Close the descriptor; the caller must have made changes durable."""
        self._file = None

    def release(self) -> None:
        self._file = None
