"""The driver of the compiled sweep: it calls resumable kernels until they have processed a chunk.

    kernel returns          driver
    NEEDS_PAYLOAD           decompresses the batch
    NEEDS_COMPRESSION       compresses the rebuilt records and emits them
    NEEDS_MAP_ROOM          checks the memory budget and grows the map
    NEEDS_..._ROOM          enlarges a buffer
    NEEDS_ORIGINAL          copies the batch's original bytes
    RUN_FULL                sets the collected keys aside and starts an empty map
    OFFSETS_NOT_INCREASING  raises FallbackRequiredError
    BEYOND_SIGHTED          raises SourceChangedError
    any other status        raises the decoder's error for the batch

The driver owns the registers, the map and the working memory of the kernels, and enforces a task's memory budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from sediment.compaction.chunk_reader import ByteArray, Chunk, ChunkReader, FallbackRequiredError
from sediment.compaction.group_output import OUTPUT_PAGES, GroupOutput
from sediment.compaction.grouping import CleaningPlan
from sediment.compaction.kernels import registers, sweep
from sediment.compaction.kernels.batch_decoder import BatchMemory, CheckedBatches, KeyMap
from sediment.compaction.kernels.batch_retention import active_producers
from sediment.compaction.kernels.cleaned_transaction_metadata import UNREADABLE
from sediment.compaction.kernels.collect_keys import RunKeys, collect_keys, digest_of
from sediment.compaction.kernels.delete_horizon import next_horizon_ms
from sediment.compaction.kernels.fill_map import fill_map
from sediment.compaction.kernels.offset_map import OffsetMap
from sediment.compaction.partition_splits import SplitContents
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled import padding
from sediment.segment_io.compiled.huge_pages import TABLE_PAGES
from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.compiled.status import (
    BEYOND_SIGHTED,
    DONE,
    MAP_FULL,
    NEEDS_COMPRESSION,
    NEEDS_MAP_ROOM,
    NEEDS_ORIGINAL,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    NEEDS_SIGHT_ROOM,
    OFFSETS_NOT_INCREASING,
    RUN_FULL,
)
from sediment.segment_io.errors import MemoryBudgetError, SourceChangedError
from sediment.segment_io.format import record_decoder
from sediment.segment_io.format.batch_rebuild import NO_HORIZON
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.compression.compress_fast_path import COMPRESSOR_REGISTERS, find_compressors
from sediment.segment_io.format.hashing import hash_secrets
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.partition.producer_state import ProducerEntry

if TYPE_CHECKING:
    from sediment.compaction.exact_keys import ExactKeys

_FIRST_RECORDS = 4096
_NO_COMPRESSORS = np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)


class KernelDriver:
    """The state of the kernels in one pass over one partition.

    `being_written_bytes` is the size of an output that another thread is still writing; it counts towards the memory
    budget.
    """

    def __init__(
        self,
        plan: CleaningPlan,
        reader: ChunkReader,
        seed: int,
        producers: Iterable[ProducerEntry],
        *,
        filter_by: int,
        exact_keys: bool = False,
    ) -> None:
        """Filter by BY_OCCURRENCE, by BY_OFFSET (call `fill_map` first) or by BY_BITMAP (call `begin_split` first)."""
        self.state = np.zeros(registers.STATE_REGISTERS, dtype=np.int64)
        self.state[registers.LAST_BASE_OFFSET] = INT64_MAX
        self.state[registers.LATEST_OFFSET] = -1
        self.being_written_bytes = 0
        self._path = str(plan.view.listing.path)
        self._config = plan.config
        self._reader = reader
        self._seed = seed
        self._secrets = hash_secrets(seed)
        self._producers = active_producers(producers)
        self._memory = WorkingMemory()
        self._rules = np.zeros(registers.RULE_REGISTERS, dtype=np.int64)
        self._rules[registers.FIRST_MAPPED_OFFSET] = plan.range.first_dirty_offset
        self._rules[registers.UPPER_BOUND_OFFSET] = plan.range.first_uncleanable_offset
        self._rules[registers.NOW_MS] = plan.now_ms
        horizon_ms = next_horizon_ms(plan.config.delete_retention_ms, plan.now_ms)
        self._rules[registers.NEXT_HORIZON_MS] = NO_HORIZON if horizon_ms is None else horizon_ms
        self._rules[registers.FILTER] = filter_by
        self._rules[registers.MAP_LIMIT] = plan.config.offset_map_keys
        self._map = OffsetMap(with_offsets=filter_by == registers.BY_OFFSET)
        self._survivor_bits = np.zeros(0, dtype=np.uint8)
        self._digest: np.uint64 | None = None
        self._runs: list[RunKeys] = []
        self._compressors = _NO_COMPRESSORS
        self._exact_keys = self._compare_keys() if exact_keys else None

    # --------------------------------------------------------------------------------------------------------- a split
    def begin_split(self, end_offset: int | None, run_limit: int) -> None:
        """Prepare to sweep a split that ends at `end_offset` (None for the newest split).

        A run has at most `run_limit` keys, unless one batch has more.
        """
        self._rules[registers.RUN_LIMIT] = run_limit
        self.state[registers.LAST_BASE_OFFSET] = INT64_MAX if end_offset is None else end_offset
        self.state[registers.RECORDS] = 0
        self._digest = np.uint64(self._seed)
        self._runs.clear()
        self._begin_run()

    def use_survivors(self, bits: ByteArray) -> None:
        self._survivor_bits = bits
        self._reader.skip_batches_without_survivors(bits)

    # ----------------------------------------------------------------------------------- kernels applied to one chunk
    def sweep_chunk(self, chunk: Chunk, output: GroupOutput) -> None:
        self._check_keys(chunk, output)
        self.state[registers.CURSOR] = chunk.positions.size

        def call(batches: CheckedBatches) -> int:
            return int(
                sweep.sweep_chunk(
                    batches,
                    self._producers,
                    self._rules,
                    self._key_map(),
                    self._memory.rows,
                    self._memory.raw,
                    self._survivor_bits,
                    output.buffer,
                    self._compressors,
                    self.state,
                )
            )

        self._drive(chunk, call, output=output)
        self.check_memory(output)
        self._note_met(chunk)

    def fill_map(self, chunk: Chunk) -> bool:
        self._check_keys(chunk)
        self.state[registers.CURSOR] = 0

        def call(batches: CheckedBatches) -> int:
            return int(fill_map(batches, self._rules, self._key_map(), self._memory.rows, self.state))

        return self._drive(chunk, call, forward=True)

    def collect_keys(self, chunk: Chunk) -> list[RunKeys]:
        self.state[registers.CURSOR] = chunk.positions.size

        def call(batches: CheckedBatches) -> int:
            memory = self._memory
            return int(collect_keys(batches, self._rules, self._key_map(), memory.rows, memory.run, self.state))

        self._drive(chunk, call)
        self._note_met(chunk)
        runs, self._runs = self._runs, []
        return runs

    def end_run(self) -> RunKeys:
        keys = self._memory.collected(int(self.state[registers.RUN_KEYS]))
        self._begin_run()
        return keys

    def met(self, without_key: tuple[int, ...] = ()) -> SplitContents:
        assert self._digest is not None
        return SplitContents(int(self.state[registers.RECORDS]), int(self._digest), without_key)

    def changed(self) -> SourceChangedError:
        return SourceChangedError(
            "the segments no longer contain the batches that an earlier sweep read from them",
            path=self._path,
            advice="another process writes to this directory; stop it and run again",
        )

    def _begin_run(self) -> None:
        self._map = OffsetMap(with_offsets=False)
        self.state[registers.HEADROOM] = 0
        self.state[registers.RUN_KEYS] = 0

    def _note_met(self, chunk: Chunk) -> None:
        if self._digest is not None:
            self._digest = np.uint64(digest_of(chunk.source, chunk.origins, self._digest))

    def _key_map(self) -> KeyMap:
        return KeyMap(self._map.tables, np.uint64(self._seed), self._secrets)

    # ------------------------------------------------------------------------------- serving the requests of kernels
    def _drive(
        self,
        chunk: Chunk,
        call: Callable[[CheckedBatches], int],
        *,
        forward: bool = False,
        output: GroupOutput | None = None,
    ) -> bool:
        """Call a resumable kernel, and serve its requests, until the chunk is done; return False if the map is full."""
        state = self.state
        batches = CheckedBatches(chunk.buffer, chunk.positions, chunk.batch_flags, chunk.payloads)
        while True:
            status = call(batches)
            if status == DONE:
                return True
            if status == MAP_FULL:
                return False
            needed = int(state[registers.NEEDED])
            if status == NEEDS_PAYLOAD:
                self._decompress(chunk, forward=forward)
            elif status == NEEDS_COMPRESSION and output is not None:
                self._compress(batches, output)
            elif status == NEEDS_MAP_ROOM:
                self.check_memory(output, more_keys=needed)
                self._map.reserve(needed)
            elif status == NEEDS_RECORD_ROOM:
                self._memory.reserve_rows(needed)
            elif status == NEEDS_RAW_ROOM:
                self._memory.reserve_raw(needed)
            elif status == NEEDS_SIGHT_ROOM:
                self._memory.reserve_run(needed)
            elif status == RUN_FULL:
                self._runs.append(self.end_run())
            elif status == OFFSETS_NOT_INCREASING:
                raise FallbackRequiredError(status)
            elif status == BEYOND_SIGHTED:
                raise self.changed()
            elif status == NEEDS_OUTPUT_ROOM and output is not None:
                output.grow(needed)
            elif status == NEEDS_ORIGINAL and output is not None:
                ordinal = int(state[registers.CURSOR]) - 1
                is_unreadable = bool(chunk.batch_flags[ordinal] & UNREADABLE)
                output.place_original(chunk.source_of(ordinal), is_unreadable=is_unreadable)
            else:
                raise self._reader.error(status, chunk, int(chunk.positions[self._current(forward=forward)]))

    def _current(self, *, forward: bool) -> int:
        cursor = int(self.state[registers.CURSOR])
        return cursor if forward else cursor - 1

    def _decompress(self, chunk: Chunk, *, forward: bool) -> None:
        ordinal = self._current(forward=forward)
        content = chunk.decompressed.pop(ordinal, None)
        if content is None:
            content = self._reader.decompress(chunk, ordinal)
        chunk.payloads[ordinal] = self._memory.hold_payload(content)

    def _compress(self, batches: CheckedBatches, output: GroupOutput) -> None:
        if self._compressors is _NO_COMPRESSORS:
            # These tools are loaded at the first request to compress. From then on, the sweep compresses batches
            # itself, if possible.
            self._compressors = find_compressors()
        codec = int(self.state[registers.PENDING_CODEC])
        raw = self._memory.raw.data[: int(self.state[registers.RAW_BYTES])]
        compressed = np.frombuffer(compress(codec, raw), dtype=np.uint8)
        while sweep.emit_compressed(batches, compressed, output.buffer, self.state) != DONE:
            output.grow(int(self.state[registers.NEEDED]))

    # --------------------------------------------------------------------------------------------- comparing whole keys
    def _compare_keys(self) -> ExactKeys:
        # Imported here, so that its kernels are compiled only if they are needed.
        from sediment.compaction.exact_keys import ExactKeys

        return ExactKeys(self._seed, self._secrets, self._reader)

    def _check_keys(self, chunk: Chunk, output: GroupOutput | None = None) -> None:
        if self._exact_keys is not None:
            self._exact_keys.check(
                chunk,
                int(self._rules[registers.FIRST_MAPPED_OFFSET]),
                lambda keys_bytes: self.check_memory(output, keys_bytes=keys_bytes),
            )

    # ------------------------------------------------------------------------------------------------ the memory budget
    def check_memory(self, output: GroupOutput | None, *, more_keys: int = 0, keys_bytes: int | None = None) -> None:
        limit_bytes = self._config.task_memory_bytes
        if limit_bytes == INT64_MAX:
            return
        map_bytes = self._map.size_bytes_with(more_keys) if more_keys else self._map.size_bytes()
        if self._exact_keys is not None:
            map_bytes += self._exact_keys.size_bytes() if keys_bytes is None else keys_bytes
        swept_bytes = 0 if output is None else output.buffer.size - int(self.state[registers.OUT_START])
        held_bytes = swept_bytes + self.being_written_bytes
        buffer_bytes = self._memory.size_bytes() + self._reader.size_bytes() + self._survivor_bits.nbytes
        if map_bytes + held_bytes + buffer_bytes > limit_bytes:
            raise MemoryBudgetError(
                f"cleaning needs more than the {limit_bytes} bytes of memory that a task may use: {map_bytes} for "
                f"at least {len(self._map)} keys, {held_bytes} for survivors, {buffer_bytes} for buffers",
                path=self._path,
                advice="raise sediment.task.memory.bytes, or limit the keys of one round with "
                "log.cleaner.dedupe.buffer.size",
            )


def release_shared_memory() -> None:
    """Free the pages that the process keeps for its next partition, because they count towards a memory limit."""
    TABLE_PAGES.clear()
    OUTPUT_PAGES.clear()


class WorkingMemory:
    def __init__(self) -> None:
        self.payload = padded_buffer(0)
        self.raw = padded_buffer(0)
        self.run = _run_of(0)
        self.reserve_rows(_FIRST_RECORDS)

    def reserve_rows(self, count: int) -> None:
        count = 1 << (count - 1).bit_length()
        self.rows = BatchMemory(
            np.zeros((count, record_decoder.RECORD_FIELDS), dtype=np.int64),
            np.zeros((count, 2), dtype=np.uint64),
            np.zeros(count, dtype=np.uint8),
        )

    def reserve_run(self, keys: int) -> None:
        """Make room for the keys of a run; the keys that were already collected are kept."""
        larger, used = _run_of(1 << (keys - 1).bit_length()), len(self.run.mapped)
        larger.hashes[:used] = self.run.hashes
        larger.mapped[:used] = self.run.mapped
        larger.numbers[:used] = self.run.numbers
        self.run = larger

    def collected(self, keys: int) -> RunKeys:
        run = self.run
        return RunKeys(run.hashes[:keys].copy(), run.mapped[:keys].copy(), run.numbers[:keys].copy())

    def reserve_raw(self, size_bytes: int) -> None:
        self.raw = padded_buffer(2 * size_bytes)

    def hold_payload(self, content: Buffer) -> tuple[int, int]:
        """Copy records to a padded buffer, because kernels may read past the end; return (address, bytes)."""
        size_bytes = memoryview(content).nbytes
        if self.payload.size < size_bytes + padding.PADDING_BYTES:
            self.payload = padded_buffer(2 * size_bytes)
        self.payload[:size_bytes] = np.frombuffer(content, dtype=np.uint8)
        return self.payload.ctypes.data, size_bytes

    def size_bytes(self) -> int:
        """Return the size of the buffers; leave out the columns of a run, because RUN_LIMIT already limits them."""
        return self.payload.nbytes + self.raw.nbytes + sum(column.nbytes for column in self.rows)


def _run_of(keys: int) -> RunKeys:
    return RunKeys(np.zeros((keys, 2), dtype=np.uint64), np.zeros(keys, dtype=np.uint8), np.zeros(keys, dtype=np.int64))
