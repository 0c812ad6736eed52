"""The type of bytes that readers and writers accept, and a generator that counts bytes as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def count_bytes(chunks: Iterable[Buffer], on_bytes: Callable[[int], None], *, most_bytes: int) -> Iterator[Buffer]:
    """Yield `chunks` in pieces of at most `most_bytes`.

    When the caller requests the next piece, call `on_bytes` with the size of the previous piece.
    """
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), most_bytes):
            piece = view[start : start + most_bytes]
            yield piece
            on_bytes(len(piece))
