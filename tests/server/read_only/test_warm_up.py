"""The warm-up of a server that reads, in a process that has loaded nothing yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.logs import LogShape, write_random_log

PROGRAM = """
import sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from sediment.server.read_only.warm_up import warm_up
from tests.server.read_only.logs import ISOLATIONS, content, frozen_log

def loaded():
    modules = [module for name, module in sys.modules.items() if name.startswith("sediment.")]
    found = {id(each): each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
    return {(each.__module__, each.__name__, len(each.signatures)) for each in found.values() if each.signatures}

warm_up()
before = loaded()
log = frozen_log(Path(sys.argv[1]))
for isolation in ISOLATIONS:
    assert content(log.read(log.log_start_offset, 1000, isolation=isolation, min_one=True))
assert log.offset_for_time(0) is not None
assert before
assert loaded() == before, loaded() - before
"""


def test_reads_after_the_warm_up_load_no_further_code(tmp_path: Path) -> None:
    write_random_log(tmp_path / "t-0", 3, LogShape(transactional=0.6, emptied=0))
    root = Path(__file__).parents[3]
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "t-0")], cwd=root, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
