"""Pages of docs run as they are written: commands, and Python code, with what they print.

    ```console     lines `$ command` and, below each, what it prints
    ```python      code; all blocks of a page share their names
    ```text        what the code before it prints

The page's `/backup` is a folder of the test, and its server listens on a free port.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.served import serving

ADDRESS = "127.0.0.1:9092"
_BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)

Run = Callable[[list[str]], str]


def run_page(page: Path, backup: Path, commands: Mapping[str, Run]) -> list[str]:
    """Run the blocks of a page, and compare what they print with the page; return the programs that were run.

    `sediment serve` runs until the next one or the end of the page.  Programs that are not in `commands` are left out;
    each returns what it prints.
    """
    ran = []
    names: dict[str, Any] = {}
    printed = ""
    address = ADDRESS
    with contextlib.ExitStack() as stack:
        for kind, block in _BLOCK.findall(page.read_text()):
            here = block.replace("/backup/", f"{backup}/")
            if kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(here.replace(ADDRESS, address), names)
                printed = output.getvalue()
                ran.append("python")
            elif kind == "text":
                assert printed == block
            else:
                for line, shown in _calls(here):
                    words = shlex.split(line.replace(ADDRESS, address))
                    if words[:2] == ["sediment", "serve"]:
                        stack.close()
                        server = stack.enter_context(serving(*words[2:]))
                        address = server.bootstrap
                        assert "\n".join(server.said).replace(address, ADDRESS) == shown
                        ran.append("sediment serve")
                    elif words[0] in commands:
                        assert _plain(commands[words[0]](words)) == _plain(shown)
                        ran.append(words[0])
    return ran


def _calls(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with what is shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield line, shown.rstrip("\n")


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
