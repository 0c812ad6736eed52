"""`sediment clone --since`: unchanged closed segments are linked from the earlier clone, and everything is verified."""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.manifest import MANIFEST_FILE
from tests.jobs.cloning.clones import clone
from tests.jobs.log_dirs import make_log_dir, sediment, tree, write_checkpoint, write_log
from tests.segments import NOW_MS, batch_bytes

LOG = f"{0:020d}.log"
ACTIVE = f"{20:020d}.log"


def statuses(source: Path, to: Path, *more: object) -> dict[str, str]:
    return {name: row["status"] for name, row in clone(source, to, *more).partitions().items()}


def test_the_next_clone_shares_what_did_not_change_with_the_clone_before(tmp_path: Path) -> None:
    logs = {f"{topic}-0": write_log(tmp_path / topic) for topic in ("t", "other")}
    source = make_log_dir(tmp_path / "logs", logs, dirty={"t-0": 0})
    for name in ("recovery-point", "replication"):
        write_checkpoint(source / f"{name}-offset-checkpoint", {"t-0": 30, "other-0": 30})
    days = [tmp_path / f"day-{number}" for number in range(3)]
    assert set(statuses(source, days[0]).values()) == {"cloned"}
    with (source / "t-0" / ACTIVE).open("ab") as log:
        log.write(batch_bytes(30, "c", timestamp=NOW_MS))
    changed = statuses(source, days[1], "--since", days[0] / MANIFEST_FILE)
    assert changed == {"t-0": "cloned", "other-0": "unchanged"}
    assert statuses(source, days[2], "--since", days[1]) == {"t-0": "unchanged", "other-0": "unchanged"}
    for day in days:
        assert sediment("clone", "--check", day).status == 0
    for partition in logs:
        assert (days[0] / partition / LOG).stat().st_nlink in (1, 3)  # 1 with reflinks
        assert (source / partition / LOG).stat().st_nlink == 1
        assert not (days[1] / partition / ACTIVE).samefile(days[0] / partition / ACTIVE)
        expected = {name: content for name, content in tree(source / partition).items() if name.endswith(".log")}
        found = tree(days[2] / partition)
        assert {name: found[name] for name in expected} == expected
