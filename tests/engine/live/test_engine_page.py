"""The code on the page about the engine runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "engine.md"


def test_the_code_of_the_page_appends_and_reads_back(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code.count('"/data/') == 2
    assert "update_high_watermark" not in code, "it can take the high watermark back"
    names: dict[str, Any] = {}
    exec(code.replace('"/data/', f'"{tmp_path}/'), names)
    found = [(record.offset, record.key, record.value) for record in names["records"]]
    assert found == [(0, b"order-1", b"placed"), (1, b"order-2", None)]
    assert names["log"].high_watermark == names["log"].log_end_offset == 2
    assert (tmp_path / "a" / "orders-0").is_dir()
