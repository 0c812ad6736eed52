"""A live server with --flush-acks after power losses: what it acknowledged is there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.live_logs import batch, config
from tests.faults.faulty_fs import Disk, FaultyFs, write_image
from tests.server.live.nodes import fetch, live, new_node, produce
from tests.twin.segments import file_batches

POWER_LOSSES = 5
BATCHES = 12
SMALL_SEGMENTS = config(segment_bytes=300)


def values_of(path: Path) -> list[bytes | None]:
    """Start a server on `path`, and return the values of t-0."""
    found: list[bytes | None] = []
    offset = 0
    with live(path, topic_config=lambda _: SMALL_SEGMENTS) as server, server.connect() as client:
        while True:
            (answer,) = fetch(client, (0, offset))
            batches = [each for _, each in file_batches(bytes(answer.records))]
            if not batches:
                return found
            found += [record.value for each in batches for record in each.records()]
            offset = batches[-1].last_offset + 1


def test_acknowledged_records_survive_a_power_loss(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path):  # makes the folder of the partition
        pass
    shutil.copytree(path, tmp_path / "stopped")
    (tmp_path / "stopped" / ".kafka_cleanshutdown").unlink()
    chance = random.Random(1)
    disk = Disk(path / "t-0")
    acknowledged: list[bytes] = []
    survivors = []
    with (
        live(path, topic_config=lambda _: SMALL_SEGMENTS, fs=FaultyFs(disk=disk), flush_acks=True) as server,
        server.connect() as client,
    ):
        for number in range(BATCHES):
            value = f"{number:04}"
            answer = produce(client, batch(("k", value), pid=1, seq=number))
            assert answer.error_code == ErrorCode.NONE
            acknowledged.append(value.encode())
            survivors.append((list(acknowledged), disk.after_random_power_loss(chance)))
    for number, (expected, image) in enumerate(chance.sample(survivors, POWER_LOSSES)):
        after = tmp_path / f"after-{number}"
        shutil.copytree(tmp_path / "stopped", after)
        write_image(after / "t-0", image)
        assert values_of(after) == expected
