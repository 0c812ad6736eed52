import gzip
import random
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import cramjam
import lz4.frame
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError, SedimentError, UnsupportedDataError
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD

CODECS = [CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD]

# Written by Kafka: three records, and the payloads of the batches that hold them.
RECORDS = bytes.fromhex("1000000002610231000e001402010276001c0013040262010402680278026e01")
KAFKA_PAYLOADS = {
    CODEC_GZIP: "1f8b08000000000000ff"
    "13606060604a643264e063106162642a6390611066614a626461ca60aa60ca6304005d038d7d20000000",
    CODEC_SNAPPY: "82534e41505059000000000100000001"
    "00000022207c1000000002610231000e001402010276001c0013040262010402680278026e01",
    CODEC_LZ4: "04224d18604082200000801000000002610231000e001402010276001c0013040262010402680278026e0100000000",
    CODEC_ZSTD: "28b52ffd00580001001000000002610231000e001402010276001c0013040262010402680278026e01010000",
}
KAFKA_PAYLOADS = {codec: bytes.fromhex(payload) for codec, payload in KAFKA_PAYLOADS.items()}

# The values of Kafka's wrappers of magic 0 and 1 over the same three records without headers.
INNER_V0 = bytes.fromhex(
    "00000000000000640000001056cf205f00000000000161000000013100000000000000650000000fd20cbff50000ffffffff00000001760000"
    "0000000000660000000f9d92668700000000000162ffffffff"
)
GZIP_V0 = bytes.fromhex(
    "1f8b08000000000000ff63600083142016083baf100fe631268208438814432a10f35fe2d9ff9581e13f1080a4caa0526920a9b993d2da21da"
    "9240f200fe1cf8a852000000"
)
LZ4_V0 = bytes.fromhex(
    "04224d1860401a4b0000001200010091640000001056cf205f0f0071016100000001310c00f0020000650000000fd20cbff50000ffffffff1b"
    "001076180040000000661b00f0009d92668700000000000162ffffffff00000000"
)
LZ4_V1 = bytes.fromhex(
    "04224d18604082"
    "50000000160001006318adc0d6e90110007003e80000000161050013311300001b005017393a7d8b09000002006003f2ffffffff230010760f"
    "00c5000000020000001723c547a72300a0de0000000162ffffffff00000000"
)


def sample(size_bytes, seed=0):
    """Bytes as records have them: repetitive, not trivially so."""
    rng = random.Random(seed)
    words = [
        b'{"user":%d,"name":"n%d"}' % (rng.randrange(1000), rng.randrange(50)) for _ in range(size_bytes // 16 + 1)
    ]
    return b"".join(words)[:size_bytes]


def noise(size_bytes, seed=0):
    return random.Random(seed).randbytes(size_bytes)


def decoded(codec, payload, limit_bytes=1 << 24, magic=2):
    return bytes(decompress(codec, payload, limit_bytes=limit_bytes, magic=magic))


def lz4_frame(blocks, *, flags=0x60, descriptor=0x40, content_size=b"", header_checksum=None, end=bytes(4)):
    fields = bytes([flags, descriptor]) + content_size
    checksum = (xxhash.xxh32_intdigest(fields) >> 8) & 0xFF if header_checksum is None else header_checksum
    return bytes.fromhex("04224d18") + fields + bytes([checksum]) + blocks + end


def stored_block(content):
    return struct.pack("<I", len(content) | 1 << 31) + content


# ------------------------------------------------------------------------------------------------------- every codec


@pytest.mark.parametrize("codec", CODECS)
def test_bf_17_payloads_written_by_kafka_decode(codec):
    assert decoded(codec, KAFKA_PAYLOADS[codec], limit_bytes=len(RECORDS)) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_bf_17_encoded_records_are_the_bytes_that_kafka_writes(codec):
    assert compress(codec, RECORDS) == KAFKA_PAYLOADS[codec]


def read_xerial(payload):
    assert payload[:16] == bytes.fromhex("82534e41505059000000000100000001")
    records, position = b"", 16
    while position < len(payload):
        (length,) = struct.unpack_from(">i", payload, position)
        records += bytes(cramjam.snappy.decompress_raw(payload[position + 4 : position + 4 + length]))
        position += 4 + length
    return records


INDEPENDENT_READERS = {
    CODEC_GZIP: lambda payload: zlib.decompress(payload, 31),
    CODEC_SNAPPY: read_xerial,
    CODEC_LZ4: lz4.frame.decompress,
    CODEC_ZSTD: lambda payload: zstandard.ZstdDecompressor().decompressobj().decompress(payload),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size_bytes", [1, 32_767, 32_768, 32_769, 65_536, 65_537, 131_073, 400_000])
def test_bf_17_encoded_records_are_read_by_independent_readers(codec, size_bytes):
    for records in (sample(size_bytes), noise(size_bytes)):
        assert INDEPENDENT_READERS[codec](compress(codec, records)) == records


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 4000)), max_size=6))
def test_what_was_compressed_is_what_comes_back(codec, pieces):
    records = b"".join(piece * times for piece, times in pieces)
    payload = compress(codec, records)
    if records or codec != CODEC_SNAPPY:
        assert decoded(codec, payload, limit_bytes=len(records)) == records
    assert decoded(codec, compress(codec, b"x" + records)) == b"x" + records


@pytest.mark.parametrize("codec", CODECS)
def test_any_contiguous_buffer_is_taken(codec):
    payload = compress(codec, RECORDS)
    padded = np.frombuffer(b"head" + payload + b"tail", dtype=np.uint8)
    assert decoded(codec, memoryview(padded)[4:-4]) == RECORDS
    assert decoded(codec, bytearray(payload)) == RECORDS
    assert compress(codec, memoryview(bytearray(RECORDS))) == payload


def test_records_of_no_codec_are_the_payload_itself():
    assert decoded(CODEC_NONE, RECORDS) == RECORDS
    assert compress(CODEC_NONE, RECORDS) == RECORDS


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_kafka_does_not_know_are_unsupported(codec):
    with pytest.raises(UnsupportedDataError, match=f"codec {codec}"):
        decompress(codec, b"", limit_bytes=10)
    with pytest.raises(UnsupportedDataError, match=f"codec {codec}"):
        compress(codec, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_fill_the_limit_pass_and_one_byte_more_does_not(codec):
    for records in (sample(100_000), noise(70_000)):
        payload = compress(codec, records)
        assert decoded(codec, payload, limit_bytes=len(records)) == records
        with pytest.raises(CorruptBatchError, match=f"expand beyond {len(records) - 1} bytes"):
            decompress(codec, payload, limit_bytes=len(records) - 1)
        with pytest.raises(CorruptBatchError, match="expand beyond 0 bytes"):
            decompress(codec, payload, limit_bytes=0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_memory_than_the_limit(codec):
    limit_bytes = 1 << 20
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match="expand beyond"):
            decompress(codec, bomb, limit_bytes=limit_bytes)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * limit_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_of_a_stream_is_an_error_or_a_prefix(codec):
    records = sample(70_000)
    payload = compress(codec, records)
    for length in [*range(60), *range(60, len(payload), 997), *range(len(payload) - 20, len(payload))]:
        try:
            assert records.startswith(decoded(codec, payload[:length])), f"{length} bytes"
        except CorruptBatchError:
            continue
        assert codec in (CODEC_SNAPPY, CODEC_ZSTD), f"{length} bytes: only streams without an end mark may end early"


@pytest.mark.parametrize("codec", [CODEC_NONE, *CODECS])
@settings(deadline=None, max_examples=300)
@given(payload=st.binary(max_size=300), magic=st.integers(0, 2))
def test_arbitrary_bytes_give_bounded_records_or_a_clear_error(codec, payload, magic):
    try:
        assert len(decompress(codec, payload, limit_bytes=5000, magic=magic)) <= 5000
    except SedimentError as error:
        assert isinstance(error, CorruptBatchError)


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_corrupt_streams_give_bounded_records_or_a_clear_error(codec, data):
    records = sample(data.draw(st.sampled_from([0, 1, 30, 700, 40_000, 140_000])))
    payload = bytearray(compress(codec, records))
    if data.draw(st.booleans()):
        payload += compress(codec, records[:50])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(payload) - 1) | st.integers(0, min(30, len(payload) - 1)))
        if data.draw(st.booleans()):
            payload[position] = data.draw(st.integers(0, 255))
        else:
            payload[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not payload:
            break
    limit_bytes = data.draw(st.sampled_from([0, 1000, 200_000]))
    try:
        assert len(decompress(codec, payload, limit_bytes=limit_bytes)) <= limit_bytes
    except SedimentError as error:
        assert isinstance(error, CorruptBatchError)


@pytest.mark.parametrize("codec", CODECS)
def test_threads_do_not_disturb_each_other(codec):
    def round_trip(seed):
        records = sample(30_000, seed)
        return all(decoded(codec, compress(codec, records)) == records for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(8)))


# -------------------------------------------------------------------------------------------------------------- gzip


def test_gzip_headers_are_those_of_a_current_java():
    assert compress(CODEC_GZIP, sample(5000))[:10] == bytes.fromhex("1f8b08000000000000ff")


def test_gzip_of_an_older_java_with_os_byte_zero_decodes():
    payload = bytearray(KAFKA_PAYLOADS[CODEC_GZIP])
    payload[9] = 0
    assert decoded(CODEC_GZIP, payload) == RECORDS
    assert decoded(CODEC_GZIP, GZIP_V0, magic=0) == INNER_V0


def test_gzip_headers_with_names_and_comments_decode():
    payload = compress(CODEC_GZIP, RECORDS)
    named = payload[:3] + b"\x18" + payload[4:10] + b"file name\0" + b"comment\0" + payload[10:]
    assert decoded(CODEC_GZIP, named) == RECORDS


def test_several_gzip_members_are_one_stream():
    members = [sample(size, seed) for seed, size in enumerate([0, 1, 50_000, 7, 300_000, 0, 12])]
    stream = b"".join(gzip.compress(member) for member in members)
    assert decoded(CODEC_GZIP, stream) == b"".join(members)


def test_many_tiny_gzip_members_take_linear_time():
    stream = gzip.compress(b"") * 50_000 + gzip.compress(RECORDS)
    assert decoded(CODEC_GZIP, stream) == RECORDS


@pytest.mark.parametrize("garbage", [b"\0", b"\x1f\x8b", b"not gzip", bytes(100), b"\x1f\x8b\x08" + bytes(15)])
def test_bytes_after_a_gzip_stream_that_are_not_a_member_are_ignored(garbage):
    assert decoded(CODEC_GZIP, KAFKA_PAYLOADS[CODEC_GZIP] + garbage) == RECORDS


@pytest.mark.parametrize("position", [0, 2, 15, -8, -4])
def test_a_flipped_byte_of_a_gzip_stream_is_an_error(position):
    payload = bytearray(KAFKA_PAYLOADS[CODEC_GZIP])
    payload[position] ^= 0x41
    with pytest.raises(CorruptBatchError, match="gzip"):
        decompress(CODEC_GZIP, payload, limit_bytes=1000)


# ------------------------------------------------------------------------------------------------------------ snappy


def test_bf_18_one_raw_snappy_block_is_accepted():
    assert decoded(CODEC_SNAPPY, KAFKA_PAYLOADS[CODEC_SNAPPY][20:]) == RECORDS


def test_bf_18_concatenated_xerial_streams_decode_to_the_concatenation():
    first, second = sample(40_000), sample(100)
    stream = compress(CODEC_SNAPPY, first) + compress(CODEC_SNAPPY, second)
    assert decoded(CODEC_SNAPPY, stream) == first + second


def test_snappy_chunks_hold_at_most_32_kib():
    payload = compress(CODEC_SNAPPY, noise(70_000))
    sizes, position = [], 16
    while position < len(payload):
        (length,) = struct.unpack_from(">i", payload, position)
        sizes.append(cramjam.snappy.decompress_raw_len(payload[position + 4 : position + 4 + length]))
        position += 4 + length
    assert sizes == [32_768, 32_768, 4464]


def test_the_versions_of_a_snappy_header_are_not_enforced():
    payload = bytearray(KAFKA_PAYLOADS[CODEC_SNAPPY])
    payload[11], payload[15] = 9, 0
    assert decoded(CODEC_SNAPPY, payload) == RECORDS


def test_fewer_than_four_bytes_after_the_last_snappy_chunk_are_ignored():
    assert decoded(CODEC_SNAPPY, KAFKA_PAYLOADS[CODEC_SNAPPY] + b"\1\2\3") == RECORDS


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "snappy stream is malformed"),
        (KAFKA_PAYLOADS[CODEC_SNAPPY][:-1], "claims 34 bytes, but 33 remain"),
        (KAFKA_PAYLOADS[CODEC_SNAPPY][:16] + bytes(4), "claims 0 bytes"),
        (KAFKA_PAYLOADS[CODEC_SNAPPY][:16] + b"\xff\xff\xff\xff", "claims -1 bytes"),
        (KAFKA_PAYLOADS[CODEC_SNAPPY] + b"\x82SNAPPX\0" + bytes(8), "header at byte 54"),
        (KAFKA_PAYLOADS[CODEC_SNAPPY] + b"\x82SNAPPY\0", "header at byte 54"),
        (b"\x20\x7c\x10", "snappy stream is malformed"),
    ],
)
def test_malformed_snappy_streams_are_errors(payload, reason):
    with pytest.raises(CorruptBatchError, match=reason):
        decompress(CODEC_SNAPPY, payload, limit_bytes=1000)


def test_a_snappy_block_that_claims_four_gigabytes_is_not_believed():
    with pytest.raises(CorruptBatchError, match="expand beyond 1000 bytes"):
        decompress(CODEC_SNAPPY, b"\xff\xff\xff\xff\x0f" + b"abc", limit_bytes=1000)


# --------------------------------------------------------------------------------------------------------------- lz4


def test_bf_19_the_broken_header_checksum_is_accepted_of_magic_0_only():
    assert decoded(CODEC_LZ4, LZ4_V0, magic=0) == INNER_V0
    for magic in (1, 2):
        with pytest.raises(CorruptBatchError, match="frame descriptor corrupted"):
            decompress(CODEC_LZ4, LZ4_V0, limit_bytes=1000, magic=magic)


def test_bf_19_the_right_header_checksum_is_accepted_of_every_magic():
    for magic in (0, 1, 2):
        assert decoded(CODEC_LZ4, KAFKA_PAYLOADS[CODEC_LZ4], magic=magic) == RECORDS
    assert len(decoded(CODEC_LZ4, LZ4_V1, magic=1)) == 106


def test_bf_20_dependent_blocks_are_rejected():
    with pytest.raises(CorruptBatchError, match="dependent blocks"):
        decompress(CODEC_LZ4, lz4_frame(stored_block(b"abc"), flags=0x40), limit_bytes=1000)


def test_bf_20_a_frame_without_end_mark_is_an_error():
    with pytest.raises(CorruptBatchError, match="ends early"):
        decompress(CODEC_LZ4, lz4_frame(stored_block(b"abc"), end=b""), limit_bytes=1000)


def test_bf_20_bytes_after_the_end_mark_are_ignored():
    assert decoded(CODEC_LZ4, KAFKA_PAYLOADS[CODEC_LZ4] + b"\1\2") == RECORDS


def test_bf_21_incompressible_blocks_are_stored():
    payload = compress(CODEC_LZ4, noise(64))
    assert payload == lz4_frame(stored_block(noise(64)))


def test_bf_21_blocks_that_do_not_shrink_are_stored():
    records = bytes(range(16)) + bytes(range(5)) + bytes(range(200, 207))
    assert len(cramjam.lz4.compress_block(records, store_size=False)) == len(records)
    assert compress(CODEC_LZ4, records) == lz4_frame(stored_block(records))


def test_lz4_blocks_hold_at_most_64_kib_and_none_is_empty():
    assert compress(CODEC_LZ4, noise(131_072)) == lz4_frame(
        stored_block(noise(131_072)[:65_536]) + stored_block(noise(131_072)[65_536:])
    )


@pytest.mark.parametrize(
    ("descriptor", "max_block_bytes"), [(0x40, 1 << 16), (0x50, 1 << 18), (0x60, 1 << 20), (0x70, 1 << 22)]
)
def test_lz4_frames_of_every_block_size_decode_and_larger_blocks_are_errors(descriptor, max_block_bytes):
    whole = noise(max_block_bytes)
    assert decoded(CODEC_LZ4, lz4_frame(stored_block(whole), descriptor=descriptor)) == whole
    with pytest.raises(CorruptBatchError, match=f"block of {max_block_bytes + 1} bytes"):
        decompress(CODEC_LZ4, lz4_frame(stored_block(whole + b"x"), descriptor=descriptor), limit_bytes=1 << 24)


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_lz4_frames_of_other_writers_decode(block_size):
    records = sample(600_000)
    frame = lz4.frame.compress(
        records, block_size=block_size, block_linked=False, content_checksum=True, block_checksum=True, store_size=True
    )
    assert decoded(CODEC_LZ4, frame) == records


def test_the_content_size_of_an_lz4_frame_is_skipped_and_part_of_its_header_checksum():
    lie = b"\xff" * 8
    assert decoded(CODEC_LZ4, lz4_frame(stored_block(b"abc"), flags=0x68, content_size=lie)) == b"abc"
    with pytest.raises(CorruptBatchError, match="frame descriptor corrupted"):
        decompress(
            CODEC_LZ4, lz4_frame(stored_block(b"abc"), flags=0x68, content_size=lie, header_checksum=0), limit_bytes=9
        )


def test_lz4_block_checksums_are_verified():
    block = stored_block(b"abc")
    right = struct.pack("<I", xxhash.xxh32_intdigest(b"abc"))
    assert decoded(CODEC_LZ4, lz4_frame(block + right, flags=0x70)) == b"abc"
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        decompress(CODEC_LZ4, lz4_frame(block + bytes(4), flags=0x70), limit_bytes=1000)


def test_the_content_checksum_of_an_lz4_frame_has_to_be_there_and_is_not_compared():
    assert decoded(CODEC_LZ4, lz4_frame(stored_block(b"abc"), flags=0x64, end=bytes(8))) == b"abc"
    with pytest.raises(CorruptBatchError, match="ends early"):
        decompress(CODEC_LZ4, lz4_frame(stored_block(b"abc"), flags=0x64, end=bytes(7)), limit_bytes=1000)


@pytest.mark.parametrize(
    ("flags", "descriptor"),
    [(0x61, 0x40), (0x62, 0x40), (0xA0, 0x40), (0x20, 0x40), (0x60, 0x41), (0x60, 0xC0), (0x60, 0x30)],
)
def test_lz4_descriptors_of_another_version_or_with_reserved_bits_are_errors(flags, descriptor):
    with pytest.raises(CorruptBatchError, match="lz4 frame descriptor"):
        decompress(CODEC_LZ4, lz4_frame(b"", flags=flags, descriptor=descriptor), limit_bytes=1000)


def test_a_malformed_lz4_block_is_an_error():
    with pytest.raises(CorruptBatchError, match="lz4 block is malformed"):
        decompress(CODEC_LZ4, lz4_frame(struct.pack("<I", 4) + b"\xff\xff\xff\xff"), limit_bytes=1000)


# -------------------------------------------------------------------------------------------------------------- zstd


def test_zstd_frames_look_like_those_of_a_kafka_stream():
    payload = compress(CODEC_ZSTD, sample(100_000))
    assert payload[:6] == bytes.fromhex("28b52ffd0058")
    assert payload[-3:] == bytes.fromhex("010000")


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_is_refused_in_messages_of_old_magic(magic):
    with pytest.raises(CorruptBatchError, match=f"magic {magic}"):
        decompress(CODEC_ZSTD, KAFKA_PAYLOADS[CODEC_ZSTD], limit_bytes=1000, magic=magic)


@pytest.mark.parametrize("with_checksum", [False, True])
@pytest.mark.parametrize("with_size", [False, True])
def test_zstd_frames_with_and_without_size_and_checksum_decode(with_size, with_checksum):
    compressor = zstandard.ZstdCompressor(write_content_size=with_size, write_checksum=with_checksum)
    for records in (b"", b"x", sample(1000), sample(500_000)):
        assert decoded(CODEC_ZSTD, compressor.compress(records), limit_bytes=len(records)) == records


def test_several_zstd_frames_and_skippable_ones_are_one_stream():
    skippable = bytes.fromhex("502a4d18") + struct.pack("<I", 3) + b"abc"
    frames = [zstandard.compress(b"first"), skippable, compress(CODEC_ZSTD, RECORDS), compress(CODEC_ZSTD, b"")]
    assert decoded(CODEC_ZSTD, b"".join(frames), limit_bytes=37) == b"first" + RECORDS


@pytest.mark.parametrize("records", [b"abc", sample(200_000)])
def test_a_flipped_zstd_checksum_is_an_error(records):
    payload = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(records))
    payload[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="zstd stream is malformed"):
        decompress(CODEC_ZSTD, payload, limit_bytes=len(records))


def test_a_flipped_checksum_of_an_empty_last_zstd_frame_is_an_error():
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b""))
    frame[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="zstd stream is malformed"):
        decompress(CODEC_ZSTD, zstandard.compress(b"abc") + frame, limit_bytes=3)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (KAFKA_PAYLOADS[CODEC_ZSTD][:-1], "ends early"),
        (KAFKA_PAYLOADS[CODEC_ZSTD][:-3], "ends early"),
        (KAFKA_PAYLOADS[CODEC_ZSTD] + b"garbage", "no frame at byte 44"),
        (b"garbage", "no frame at byte 0"),
        (bytes.fromhex("502a4d18ffffffff"), "ends early"),
        (bytes.fromhex("28b52ffd"), "malformed"),
    ],
)
def test_malformed_zstd_streams_are_errors(payload, reason):
    with pytest.raises(CorruptBatchError, match=reason):
        decompress(CODEC_ZSTD, payload, limit_bytes=1000)


def test_a_zstd_frame_that_claims_an_exabyte_is_not_believed():
    header = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 1 << 60)
    with pytest.raises(CorruptBatchError):
        decompress(CODEC_ZSTD, header + bytes.fromhex("190000") + b"abc", limit_bytes=1000)
