"""The offsets of a stream: what they record, and what happens to a log that was truncated, replaced or restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs import datasource
from sediment.jobs.data_source.options import SourceOptions
from sediment.jobs.data_source.stream_offsets import offsets_json, parse_offsets
from sediment.jobs.datasource import KafkaLogStreamReader
from sediment.segment_io.errors import SourceChangedError, UsageError
from sediment.segment_io.format.names import PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_partition_metadata
from tests.segments import batch_bytes, write_segment

OLD_ID, NEW_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBAg"


def write_log(directory: Path, offsets: Sequence[int], value: bytes, topic_id: str | None) -> None:
    """Write one segment with a record at each offset, all of the same key and timestamp."""
    write_segment(directory, offsets[0], [batch_bytes(offset, "k", value=value) for offset in offsets])
    if topic_id is not None:
        write_partition_metadata(Fs(), directory / PARTITION_METADATA_FILE, topic_id)


class Query:
    """A streaming query that is restarted for every batch; `progress` is its checkpoint."""

    tells_start = True  # Spark 4.0 and 4.1 do not tell where a batch begins

    def __init__(self, log_dir: Path, **options: str) -> None:
        self._options = {"path": str(log_dir), **options}
        self.progress: dict[str, Any] = {}

    def reader(self) -> KafkaLogStreamReader:
        return KafkaLogStreamReader(SourceOptions.parse(self._options))

    def plan(self, reader: KafkaLogStreamReader) -> dict[str, Any]:
        asked = (self.progress, reader.getDefaultReadLimit()) if self.tells_start else ()
        end = reader.latestOffset(*asked)
        found: dict[str, Any] = json.loads(json.dumps(end))
        return found

    def rows(self, reader: KafkaLogStreamReader, end: dict[str, Any]) -> list[tuple[int, bytes]]:
        return [
            (row["offset"], row["value"])
            for task in reader.partitions(self.progress, end)
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]

    def batch(self) -> list[tuple[int, bytes]]:
        """Return the rows of the next batch, and record its end."""
        reader = self.reader()
        end = self.plan(reader)
        found = self.rows(reader, end)
        self.progress = end
        return found

    @property
    def offsets(self) -> dict[str, int]:
        return {name: entry.offset for name, entry in parse_offsets(self.progress).items()}


def old(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"old") for offset in offsets]


def new(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"new") for offset in offsets]


@pytest.fixture(autouse=True, params=["Spark 4.2", "Spark 4.0"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    is_new = request.param == "Spark 4.2"
    monkeypatch.setattr(Query, "tells_start", is_new)
    monkeypatch.setattr(datasource, "HAS_READ_LIMITS", is_new)


@pytest.fixture(params=["topic ids", "no topic ids"])
def ids(request: pytest.FixtureRequest) -> tuple[str | None, str | None]:
    """Return the ids of a topic and of a topic with the same name that replaces it."""
    return (OLD_ID, NEW_ID) if request.param == "topic ids" else (None, None)


# ----------------------------------------------------------------------------------------------------- created again
@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_partition_that_was_created_again_is_read_from_its_first_offset(
    count: int, ids: tuple[str | None, str | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    write_log(tmp_path / "t-1", range(2), b"old", ids[0])
    lenient, strict = Query(tmp_path), Query(tmp_path, failOnDataLoss="true")
    for query in (lenient, strict):
        assert query.batch() == [*old(*range(5)), *old(0, 1)]
    shutil.rmtree(tmp_path / "t-0")
    write_log(tmp_path / "t-0", range(count), b"new", ids[1])
    sentence = "the offset was changed from 5 to 0, because the"
    with pytest.raises(SourceChangedError, match=rf"{sentence} .*\(partition t-0\); set failOnDataLoss to false"):
        strict.batch()
    assert lenient.batch() == new(*range(count))
    assert f"t-0: {sentence}" in caplog.text
    assert lenient.batch() == []
    assert lenient.offsets == {"t-0": count, "t-1": 2}


def test_a_checkpoint_of_a_version_without_marks_is_continued_and_gets_marks(
    ids: tuple[str | None, str | None], tmp_path: Path
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    query = Query(tmp_path, failOnDataLoss="true")
    query.progress = {"t-0": 3}
    assert query.batch() == old(3, 4)
    assert query.batch() == []
    shutil.rmtree(tmp_path / "t-0")
    write_log(tmp_path / "t-0", range(8), b"new", ids[1])
    with pytest.raises(SourceChangedError, match="from 5 to 0, because the partition was deleted and created again"):
        query.batch()


def test_a_checkpoint_of_a_version_without_marks_notices_a_log_that_ends_earlier(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", range(4), b"new", NEW_ID)
    lenient, strict = Query(tmp_path), Query(tmp_path, failOnDataLoss="true")
    lenient.progress = strict.progress = {"t-0": 9}
    with pytest.raises(SourceChangedError, match="from 9 to 0, because the log ends at offset 4: it was truncated, or"):
        strict.batch()
    assert lenient.batch() == new(*range(4))


@pytest.mark.parametrize("release", ["Spark 4.2"], indirect=True)
def test_a_limit_divides_a_partition_that_was_created_again(
    release: None, ids: tuple[str | None, str | None], tmp_path: Path
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    query = Query(tmp_path, maxOffsetsPerTrigger="3")
    assert [query.batch(), query.batch()] == [old(0, 1, 2), old(3, 4)]
    shutil.rmtree(tmp_path / "t-0")
    write_log(tmp_path / "t-0", range(7), b"new", ids[1])
    assert [query.batch() for _ in range(4)] == [new(0, 1, 2), new(3, 4, 5), new(6), []]


def test_a_partition_that_was_absent_for_some_batches_is_compared_with_the_log_that_was_read(
    ids: tuple[str | None, str | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    write_log(tmp_path / "u-0", range(1), b"old", OLD_ID)
    query = Query(tmp_path, subscribePattern="[tu]")
    assert len(query.batch()) == 6
    shutil.rmtree(tmp_path / "t-0")
    assert query.batch() == []
    assert "t-0: the partition was removed while the stream read it" in caplog.text
    write_log(tmp_path / "t-0", range(8), b"new", ids[1])
    assert query.batch() == new(*range(8))


# ------------------------------------------------------------------------------------------------------- the same log
def test_a_copy_of_a_log_is_the_same_log(ids: tuple[str | None, str | None], tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "t-0", range(5), b"old", ids[0])
    query = Query(tmp_path / "logs", failOnDataLoss="true")
    assert query.batch() == old(*range(5))
    shutil.copytree(tmp_path / "logs", tmp_path / "backup")
    shutil.rmtree(tmp_path / "logs")
    shutil.copytree(tmp_path / "backup", tmp_path / "logs")
    write_segment(tmp_path / "logs" / "t-0", 5, [batch_bytes(5, "k", value=b"new")])
    assert query.batch() == new(5)


def test_compaction_and_retention_leave_the_same_log_even_in_a_copy(
    ids: tuple[str | None, str | None], tmp_path: Path
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    query = Query(tmp_path, failOnDataLoss="true")
    assert query.batch() == old(*range(5))
    shutil.rmtree(tmp_path / "t-0")  # of offsets 0 to 4 only 3 is left
    write_log(tmp_path / "t-0", [3, 5, 6], b"old", ids[0])
    assert query.batch() == old(5, 6)


def test_a_topic_that_gets_an_id_or_loses_it_is_the_same_topic(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", None)
    query = Query(tmp_path, failOnDataLoss="true")
    assert query.batch() == old(*range(5))
    write_log(tmp_path / "t-0", range(6), b"old", OLD_ID)
    assert query.batch() == old(5)
    (tmp_path / "t-0" / PARTITION_METADATA_FILE).write_bytes(b"")
    write_log(tmp_path / "t-0", range(7), b"old", None)
    assert query.batch() == old(6)


def test_a_truncated_log_is_continued_at_its_end(
    ids: tuple[str | None, str | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    lenient, strict = Query(tmp_path), Query(tmp_path, failOnDataLoss="true")
    for query in (lenient, strict):
        assert query.batch() == old(*range(5))
    write_log(tmp_path / "t-0", range(3), b"old", None)
    with pytest.raises(SourceChangedError, match="from 5 to 3, because the log was truncated"):
        strict.batch()
    assert lenient.batch() == []
    write_segment(tmp_path / "t-0", 3, [batch_bytes(3, "k", value=b"new")])
    assert lenient.batch() == new(3)
    assert caplog.text.count("from 5 to 3") == 1


# ----------------------------------------------------------------------------------------------- planned, then changed
@pytest.mark.parametrize("change", ["removed", "created again", "truncated", "same"])
def test_a_batch_that_was_planned_and_then_restarted_reads_the_planned_log_or_reports_the_loss(
    change: str, ids: tuple[str | None, str | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    write_log(tmp_path / "u-0", range(1), b"old", OLD_ID)
    lenient, strict = Query(tmp_path), Query(tmp_path, failOnDataLoss="true")
    for query in (lenient, strict):
        query.progress = {"t-0": offsets_json({"t-0": parse_offsets(query.plan(query.reader()))["t-0"]})["t-0"]}
        query.progress["t-0"]["offset"] = 2
    end = lenient.plan(lenient.reader())
    if change != "same":
        shutil.rmtree(tmp_path / "t-0", ignore_errors=change == "truncated")
    if change == "created again":
        write_log(tmp_path / "t-0", range(8), b"new", ids[1])
    if change == "truncated":
        write_log(tmp_path / "t-0", range(3), b"old", ids[0])
    kept = {"same": old(2, 3, 4), "truncated": old(2)}.get(change, [])
    assert lenient.rows(lenient.reader(), end) == [*kept, *old(0)]
    if change == "same":
        assert not caplog.text
        return
    lost = f"offsets {3 if change == 'truncated' else 2} to 4 were lost before the stream read them, because the"
    assert f"t-0: {lost}" in caplog.text
    with pytest.raises(SourceChangedError, match=lost):
        strict.rows(strict.reader(), end)


@pytest.mark.parametrize("change", ["removed", "created again"])
def test_a_task_does_not_read_a_partition_that_replaced_the_planned_one(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", OLD_ID)
    for is_strict in (False, True):
        query = Query(tmp_path, failOnDataLoss=str(is_strict).lower())
        reader = query.reader()
        (task,) = reader.partitions({}, query.plan(reader))
        kept = shutil.move(tmp_path / "t-0", tmp_path / "kept")
        if change == "created again":
            write_log(tmp_path / "t-0", range(8), b"new", NEW_ID)
        if is_strict:
            with pytest.raises(SourceChangedError, match="offsets 0 to 4 were removed before the stream read them"):
                list(reader.read(task))
            continue
        assert list(reader.read(task)) == []
        assert "t-0: offsets 0 to 4 were removed before the stream read them" in caplog.text
        shutil.rmtree(tmp_path / "t-0", ignore_errors=True)
        shutil.move(kept, tmp_path / "t-0")


def test_a_query_that_stops_at_the_current_end_delivers_a_new_partition_in_its_next_run(
    ids: tuple[str | None, str | None], tmp_path: Path
) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", ids[0])
    query = Query(tmp_path)
    reader = query.reader()
    reader.prepareForTriggerAvailableNow()
    shutil.rmtree(tmp_path / "t-0")
    write_log(tmp_path / "t-0", range(8), b"new", ids[1])
    end = query.plan(reader)
    assert query.rows(reader, end) == []
    query.progress = end
    assert query.plan(reader) == end
    assert query.batch() == new(*range(8))


# ---------------------------------------------------------------------------------------------------------------- JSON
def test_the_offset_of_a_topic_with_an_id_is_short_and_has_nothing_of_a_record(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", range(5), b"old", OLD_ID)
    query = Query(tmp_path)
    query.batch()
    assert query.progress == {"t-0": {"offset": 5, "topicId": OLD_ID}}


@pytest.mark.parametrize("found", [{"t": {"0": 23}}, {"t-0": {"offset": "5"}}, {"t-0": None}, {"t-0": [1]}, [1]])
def test_offsets_of_another_source_are_refused(found: Any) -> None:
    with pytest.raises(UsageError, match="the checkpoint of the query has offsets that kafka-log cannot read"):
        parse_offsets(found)
