"""The table `topics`: its values and their sources, compared with the answers of a broker (tests/data/kraft)."""

from __future__ import annotations

import json
import shutil
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest

import sediment
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from tests.archives import unpack
from tests.segments import batch_bytes, write_segment

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
ANSWERS = json.loads((KRAFT / "configs.json").read_text())


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    return tmp_path / "data"


def topics(*log_dirs: Path, config: Path | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    rows = list(sediment.LogDirectories(*log_dirs, config=config).dump(what="topics"))
    found = {(row["topic"], row["key"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_values_and_sources_are_those_that_the_broker_answers(log_dir: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in ANSWERS["static"].items()))
    found = topics(log_dir, config=properties)
    assert {topic for topic, _ in found} == set(ANSWERS["topics"])
    sources = set()
    for topic, answered in ANSWERS["topics"].items():
        for key, (text, source) in answered.items():
            if key not in {of_key for _, of_key in found} or key == "segment.bytes":
                continue
            row = found[topic, key]
            sources.add(source)
            if row["source"] == "NOT_STATED":
                assert (source, row["value"]) == ("DEFAULT_CONFIG", None), key
            elif source == "DEFAULT_CONFIG":  # Kafka's answer for a value in other units, such as log.roll.hours
                assert (row["value"], row["source"]) == (text, "STATIC_BROKER_CONFIG"), key
            else:
                assert row["source"] == source, key
                assert row["value"] == text or float(row["value"]) == float(text), key
    assert sources >= {"DEFAULT_CONFIG", "DYNAMIC_TOPIC_CONFIG", "STATIC_BROKER_CONFIG"}


def test_without_the_file_its_values_are_not_stated(log_dir: Path) -> None:
    found = topics(log_dir)
    for topic, answered in ANSWERS["topics"].items():
        for key, (_, source) in answered.items():
            if source in ("STATIC_BROKER_CONFIG", "DEFAULT_CONFIG") and (topic, key) in found:
                row = found[topic, key]
                assert (row["value"], row["source"]) == (None, "NOT_STATED") or row["source"].startswith("DYNAMIC_")


def test_another_directory_of_the_node_has_its_metadata_and_no_second_rows(log_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_segment(other / "compacted-7", 0, [batch_bytes(0)])
    shutil.copy(log_dir / "meta.properties", other)
    both = topics(log_dir, other)
    assert both == topics(log_dir)
    assert both["compacted", "cleanup.policy"]["topicId"] is not None
    alone = topics(other)
    assert {row["source"] for row in alone.values()} == {"NOT_STATED"}
    assert {(row["topicId"], row["partitions"], row["value"]) for row in alone.values()} == {(None, None, None)}


def test_a_directory_that_never_started_has_the_configs_of_its_bootstrap_checkpoint(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0)])
    records = [
        m.TopicRecord(name="t", topic_id=uuid.UUID(int=1)),
        m.ConfigRecord(resource_type=2, resource_name="t", name="cleanup.policy", value="compact,delete"),
        m.ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5000"),
    ]
    content = format_bootstrap_checkpoint([encode_metadata_record(record, 0) for record in records], now_ms=1)
    (tmp_path / "bootstrap.checkpoint").write_bytes(content)
    assert {row["source"] for row in topics(tmp_path).values()} == {"NOT_STATED"}
    (tmp_path / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    found = topics(tmp_path)
    stated = {key: (row["value"], row["source"]) for (_, key), row in found.items() if row["value"] is not None}
    assert stated == {
        "cleanup.policy": ("compact,delete", "BOOTSTRAP_CHECKPOINT"),
        "retention.ms": ("5000", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    }
    (tmp_path / "__cluster_metadata-0").mkdir()
    assert {row["source"] for row in topics(tmp_path).values()} == {"NOT_STATED"}


def test_a_file_that_cannot_be_used_is_an_error(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.properties").write_text("log.retention.ms=soon\n")
    with pytest.raises(SettingsError, match="retention"):
        topics(log_dir, config=tmp_path / "bad.properties")
