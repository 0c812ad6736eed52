"""Mutated messages of Kafka's protocol for its decoders, in every type and version.

    valid messages, some of each type and version ──mutate──> frame ──decode──> message or ProtocolError

Anything else ends the campaign, with the frame in the error: another exception, a decoding that takes longer than
MOST_NS of CPU, or one that takes more memory than MOST_TIMES_THE_FRAME.
"""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages
from tests.segment_io.protocol.random_messages import message_versions, random_message

MOST_NS = 250_000_000
MOST_TIMES_THE_FRAME = 32
MEASURED_EVERY = 2000  # measuring memory takes long
OWN_BYTES = 8192  # of an error with its trace, or of a message without elements

_SEEDS_OF_EACH = 6
_EDGES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07")


class FrameFailureError(AssertionError):
    """A frame broke a bound, or its decoder failed in a way of its own."""


@dataclass(frozen=True, slots=True)
class FramesDone:
    """Result of a campaign."""

    frames: int
    decoded: int
    refused: int
    seconds: float
    slowest_us: float
    peak_bytes: int

    def __str__(self) -> str:
        rate = self.frames / self.seconds
        return (
            f"{self.frames} frames in {self.seconds:.0f} s ({rate:.0f}/s), {self.decoded} decoded, "
            f"{self.refused} refused, slowest {self.slowest_us:.0f} us of CPU, most memory {self.peak_bytes} bytes"
        )


def run(frames: int, seed: int) -> FramesDone:
    """Decode `frames` mutated frames.

    Raises:
        FrameFailureError: one of them failed.
    """
    chance = random.Random(seed)
    pool = _pool(chance)
    decoded = refused = slowest_ns = peak_bytes = 0
    started = time.monotonic()
    for number in range(frames):
        message_class, version, seeds = chance.choice(pool)
        frame = mutated(chance.choice(seeds), chance)
        before = time.thread_time_ns()
        try:
            message_class.decode(frame, version)
            decoded += 1
        except ProtocolError:
            refused += 1
        except BaseException as error:
            raise _failure(message_class, version, frame, f"{error!r}") from error
        taken_ns = time.thread_time_ns() - before
        slowest_ns = max(slowest_ns, taken_ns)
        if taken_ns > MOST_NS:
            raise _failure(message_class, version, frame, f"{taken_ns} ns of CPU")
        if number % MEASURED_EVERY == 0:
            peak_bytes = max(peak_bytes, _peak_bytes(message_class, version, frame))
    seconds = time.monotonic() - started
    return FramesDone(frames, decoded, refused, seconds, slowest_ns / 1000, peak_bytes)


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """Return the frame with some bytes changed, put in, taken out or cut off."""
    content = bytearray(frame)
    for _ in range(chance.getrandbits(1) + 1):
        at = chance.randrange(len(content) + 1)
        match chance.getrandbits(3):
            case 0:
                del content[at:]
            case 1:
                del content[at : at + 1 + chance.getrandbits(3)]
            case 2:
                content[at:at] = chance.choice(_EDGES)
            case 3 | 4:
                edge = chance.choice(_EDGES)
                content[at : at + len(edge)] = edge
            case 5:
                content[at:at] = content[: chance.getrandbits(5)]
            case _:
                content[at : at + 1] = bytes((chance.getrandbits(8),))
    return bytes(content)


def _pool(chance: random.Random) -> list[tuple[Any, int, list[bytes]]]:
    pool = []
    for name, version in message_versions():
        seeds = [
            random_message(name, version, chance, small=number > 0).to_bytes(version)
            for number in range(_SEEDS_OF_EACH)
        ]
        message_class = getattr(messages, name)
        message_class.decode(seeds[0], version)  # compiled before any decoding is timed
        pool.append((message_class, version, seeds))
    return pool


def _peak_bytes(message_class: Any, version: int, frame: bytes) -> int:
    tracemalloc.start()
    with contextlib.suppress(ProtocolError):
        message_class.decode(frame, version)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if peak_bytes > OWN_BYTES + MOST_TIMES_THE_FRAME * len(frame):
        raise _failure(message_class, version, frame, f"{peak_bytes} bytes of memory")
    return peak_bytes


def _failure(message_class: Any, version: int, frame: bytes, what: str) -> FrameFailureError:
    return FrameFailureError(f"{message_class.__name__} version {version}, frame {frame.hex()}: {what}")
