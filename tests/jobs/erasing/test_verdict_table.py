"""Tables of verdicts with values of other types than a verdict has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sediment.jobs.erasing.verdict_table import GivenVerdict, read_verdicts
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import TopicPartition

ROW = {"topic": ["t"], "partition": [0], "offset": [1], "action": ["replace"]}


def table(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table({**ROW, **columns}), path)
    return str(path)


def test_keys_and_values_are_bytes_or_text(tmp_path: Path) -> None:
    found = read_verdicts(table(tmp_path / "v", key=["k"], value=[b"\xff"]))
    assert found == {TopicPartition("t", 0): (GivenVerdict(1, "replace", b"k", b"\xff"),)}


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"value": [5]}, "neither binary nor text"),
        ({"key": [[b"k"]]}, "neither binary nor text"),
        ({"value": [{"a": 1}]}, "neither binary nor text"),
        ({"offset": pa.array([2**64 - 1], pa.uint64())}, "names no record"),
        ({"offset": [1.0]}, "names no record"),
        ({"partition": [True]}, "names no record"),
        ({"topic": [b"t"]}, "names no record"),
        ({"action": [["drop"]]}, "unknown action"),
    ],
)
def test_values_of_other_types_are_refused_before_anything_is_read(
    tmp_path: Path, columns: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        read_verdicts(table(tmp_path / "v", **columns))
