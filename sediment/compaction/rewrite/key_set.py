"""A set of keys to search for, in the form that is sent to tasks.

    contents  | key 0 | key 1 | key 2 | padding |      sorted bytes, one after another
    edges     0       ^       ^       ^

Invariant: `repr` never shows a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.compiled.padding import padded_copy
from sediment.segment_io.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class KeySet:
    """Key n is `contents`[edges[n] : edges[n + 1]].

    `contents` is uint8[bytes] with padding, and `edges` is int64[keys + 1].
    """

    contents: ByteArray = field(repr=False)
    edges: Int64s = field(repr=False)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KeySet:
        different = set(keys)
        if not all(isinstance(key, bytes) for key in different):
            raise UsageError("a key to search for is not bytes", advice="encode it as the producer did")
        ordered = sorted(different)
        edges = np.zeros(len(ordered) + 1, dtype=np.int64)
        np.cumsum([len(key) for key in ordered], out=edges[1:])
        return cls(padded_copy(b"".join(ordered)), edges)

    def __len__(self) -> int:
        return self.edges.size - 1

    def key(self, number: int) -> bytes:
        return self.contents[self.edges[number] : self.edges[number + 1]].tobytes()
