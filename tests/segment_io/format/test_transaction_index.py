import pickle

import pytest

from sediment.segment_io.errors import UnsupportedDataError
from sediment.segment_io.format.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    collect_aborted,
    encode_transaction_index,
    parse_transaction_index,
)

INT32_MAX = 2**31 - 1
FOUR = tuple(AbortedTxn(*entry) for entry in ((0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40)))


def four():
    return parse_transaction_index(encode_transaction_index(FOUR))


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "is_complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
    ],
)
def test_ix_14_aborted_transactions_of_a_range_are_collected(fetch_offset, upper_bound, expected, is_complete):
    collected = four().collect(fetch_offset, upper_bound)
    assert (collected.transactions, collected.is_complete) == (expected, is_complete)


def test_ix_14_the_search_ends_after_the_entry_that_reaches_the_upper_bound():
    entries = [AbortedTxn(1, 0, 10, 30), AbortedTxn(2, 5, 40, 41)]
    collected = parse_transaction_index(encode_transaction_index(entries)).collect(0, 30)
    assert (collected.transactions, collected.is_complete) == ((entries[0],), True)


def test_aborted_transactions_are_collected_over_segments_until_one_is_complete():
    def indexes():
        yield parse_transaction_index(b"")
        yield parse_transaction_index(encode_transaction_index(FOUR[:2]))
        yield parse_transaction_index(encode_transaction_index(FOUR[2:]))
        raise AssertionError("walked past the complete index")

    assert collect_aborted(indexes(), 0, 35) == FOUR
    assert collect_aborted([four()], 60, 100) == ()
    assert collect_aborted([], 0, 100) == ()


def test_ix_18_bytes_that_make_no_entry_are_ignored():
    assert parse_transaction_index(encode_transaction_index(FOUR)[:50]).transactions() == FOUR[:1]


def test_newer_transaction_entries_are_refused_by_the_first_byte_of_their_version():
    content = bytearray(encode_transaction_index(FOUR))
    content[35] = 1
    assert parse_transaction_index(content).transactions() == FOUR
    content[34] = 0xFF
    assert parse_transaction_index(content).transactions() == FOUR
    content[34] = 1
    with pytest.raises(UnsupportedDataError, match="position 34"):
        parse_transaction_index(content)


def test_a_transaction_index_survives_the_way_to_an_executor():
    index = pickle.loads(pickle.dumps(four()))
    assert isinstance(index, TransactionIndex)
    assert index.transactions() == FOUR
