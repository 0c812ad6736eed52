"""The warm-up of a server that takes records, in a process that has loaded nothing yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from sediment.server.live.warm_up import warm_up_appends
from tests.engine.live_logs import batch
from sediment.segment_io.protocol import messages as m
from tests.server.live.nodes import CONFIG, live, new_node, produce, produce_request
from tests.server.network.listeners import frame

KERNELS = (
    "append_check_kernels", "append_run_kernels", "index_appends", "record_decoder", "checksum", "batch_rebuild",
    "decompress_fast_path", "timestamp_search", "search", "transaction_index",
)

def loaded():
    modules = [module for name, module in sys.modules.items() if name.rpartition(".")[2] in KERNELS]
    found = {id(each): each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
    return {(each.__module__, each.__name__, len(each.signatures)) for each in found.values() if each.signatures}

warm_up_appends()
configs = {"t": CONFIG, "lz4": replace(CONFIG, compression_type="lz4")}
node = new_node(Path(sys.argv[1]), dict.fromkeys(configs, 1))
with live(node, topic_config=configs.__getitem__) as server, server.connect() as client:
    before = loaded()
    for version in (8, 13):
        for records in (batch(), batch(("k", "v" * 50_000))):
            for _ in range(3):
                assert produce(client, records, version=version).error_code == 0
        client.socket.sendall(20 * frame(produce_request(batch(), version=version), version, 0))
        for _ in range(20):
            client.receive_frame()
    for topic in configs:
        for codec in range(5):
            records = batch(codec=codec, ts=[7], append_time=None)
            assert produce(client, records, topic=topic, version=12).error_code == 0
    lookup, fetch = m.ListOffsetsRequest, m.FetchRequest
    for timestamp in (-3, -2, -1, 5):
        partition = lookup.ListOffsetsPartition(timestamp=timestamp)
        answer = client.ask(lookup(topics=[lookup.ListOffsetsTopic(name="t", partitions=[partition])]), 8)
        assert answer.topics[0].partitions[0].offset >= 0, timestamp
    for isolation in (0, 1):
        partition = fetch.FetchPartition(partition_max_bytes=1 << 20)
        topic = fetch.FetchTopic(topic="t", partitions=[partition])
        client.ask(fetch(max_bytes=1 << 20, isolation_level=isolation, topics=[topic]), 12)
assert before
assert loaded() == before, loaded() - before
"""


def test_requests_after_the_warm_up_load_no_further_code(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")], cwd=root, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
