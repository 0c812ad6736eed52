"""The notebooks in docs/examples: their cells run and give the expected results.  `make docs` runs them in a kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run_cells(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for cell in json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        return names

    return run_cells


def test_a_topic_is_explored(run):
    names = run("explore-a-topic")
    written = [json.loads(value) for value in names["frame"]["value"]]
    assert names["by_status"]["count"].sum() == len(written) == 2000
    assert names["by_status"]["sum"].sum() == sum(order["amount"] for order in written)
    assert len(names["state"]) == names["frame"]["key"].nunique()


def test_a_compaction_is_proved_before_the_old_files_go(run):
    names = run("nightly-compaction")
    (compacted,), (verified,) = names["compacted"].partitions, names["verified"].partitions
    assert (compacted.messages_read, compacted.messages_written) == (3000, 80)
    assert (verified.status, verified.records_after) == ("correct", 1080)
    assert names["saved_again"] == 0
    assert not names["before"].exists() and not (names["work"] / "before-2").exists()


def test_every_bad_record_and_the_last_good_values_are_found(run):
    names = run("bad-deploy")
    assert all(b"." not in value for value in names["bad"]["value"])
    assert all(b"." in value for value in names["corrections"]["value"])
    assert len(names["bad"]) == sum(b"." not in value for value in names["since"]["value"]) == 400
    assert len(names["wrong"]) == len(names["corrections"]) + len(names["without_good_value"]) > 0
    last = {row.key: row.value for row in names["since"].itertuples()}
    assert {key for key, value in last.items() if b"." not in value} == set(names["wrong"]["key"])
