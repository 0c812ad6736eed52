"""Topic settings from the `bootstrap.checkpoint` of a clone or an adopted directory, until a broker starts on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from tests.jobs.expiring.expired_logs import make_log
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.served import unpacked

DAY_MS = 86_400_000
LONG_AGO_MS = NOW_MS - 1000 * DAY_MS
METADATA = "__cluster_metadata-0"
STATED = ("limited:cleanup.policy=delete", f"limited:retention.ms={DAY_MS}")


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone, held as by default, of the directory of a stopped broker."""
    root = tmp_path_factory.mktemp("clones")
    outcome = sediment("clone", unpacked(root / "source"), "--to", root / "held", "--json")
    assert outcome.status == 0, outcome.stderr
    return root / "held"


@pytest.fixture(scope="module")
def adoptions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adopted directory with old records, in which only the topic `limited` has a policy and a limit."""
    path = tmp_path_factory.mktemp("adoptions") / "data"
    for name in ("limited-0", "other-0"):
        make_log(path, name, times_ms=(LONG_AGO_MS,) * 3)
    (path / ".kafka_cleanshutdown").unlink()
    outcome = sediment("adopt", path, "--yes", "--json", *(f"--set={each}" for each in STATED))
    assert outcome.status == 0, outcome.stderr
    return path


@pytest.fixture
def held(clones: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clones, tmp_path / "held"))


@pytest.fixture
def adopted(adoptions: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(adoptions, tmp_path / "adopted"))


def expire(log_dir: Path, *more: object) -> Outcome:
    return sediment("expire", log_dir, "--json", "--quiet", f"--now-ms={NOW_MS}", *more)


def codes(outcome: Outcome) -> dict[str, tuple[str, str | None]]:
    return {name: (row["status"], row["reason_code"]) for name, row in outcome.partitions().items()}


def opened(log_dir: Path, *others: Path, settings: Settings | None = None) -> SelectedDirectory:
    return open_directories([log_dir, *others], Selection(), RunSettings((settings or Settings(),)), Fs())[0]


def states_configs(log_dir: Path, *others: Path, settings: Settings | None = None) -> bool:
    found = opened(log_dir, *others, settings=settings)
    return found.settings.origin("limited", "cleanup.policy") == Origin.METADATA


# ------------------------------------------------------------------------------------------------- a clone, an adoption
def test_expire_deletes_nothing_of_a_held_clone(held: Path) -> None:
    before = tree(held)
    for more in ((), (f"--config={held / 'server.properties'}",)):
        outcome = sediment("expire", held, *more, "--json", f"--now-ms={NOW_MS + 10_000 * DAY_MS}")
        assert outcome.status == 0, outcome.stderr
        found = codes(outcome)
        assert {status for status, _ in found.values()} == {"skipped"}
        assert (found["orders-0"][1] == "policy-unknown") == (not more)
        assert tree(held) == before


def test_plan_and_compact_take_the_policies_of_a_clone(held: Path) -> None:
    wanted = {"prices-0": ("skipped", "active-segment"), "orders-0": ("skipped", "policy-unknown")}
    outcome = sediment("compact", held, "--json", "--force", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stderr
    assert {name: codes(outcome)[name] for name in wanted} == wanted
    reasons = {name: row["reason_code"] for name, row in plan(held).items()}
    assert {name: reasons[name] for name in wanted} == {name: code for name, (_, code) in wanted.items()}


def test_only_stated_limits_expire_records_of_an_adopted_directory(adopted: Path) -> None:
    before = tree(adopted / "other-0")
    outcome = expire(adopted)
    assert outcome.status == 0, outcome.stderr
    assert codes(outcome) == {"limited-0": ("expired", None), "other-0": ("skipped", "policy-unknown")}
    assert tree(adopted / "other-0") == before
    # The broker's own file states the policy of the other topic; its held limits keep every record.
    outcome = expire(adopted, f"--config={adopted / 'server.properties'}")
    assert codes(outcome)["other-0"] == ("skipped", "nothing-to-delete")
    assert tree(adopted / "other-0") == before


def plan(log_dir: Path) -> dict[str, dict[str, Any]]:
    outcome = sediment("plan", log_dir, "--json", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stderr
    return outcome.partitions()


# ----------------------------------------------------------------------------------------------------- until it is read
def test_a_formatted_node_states_nothing(adopted: Path) -> None:
    record = encode_metadata_record(m.FeatureLevelRecord(name="metadata.version", feature_level=29), 0)
    (adopted / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint([record], now_ms=NOW_MS))
    before = tree(adopted)
    outcome = expire(adopted)
    assert (
        outcome.status == 2
        and "__cluster_metadata-0, which contains its topics' configs, was not found" in outcome.stderr
    )
    assert {row["reason_code"] for row in plan(adopted).values()} == {"policy-unknown"}
    outcome = expire(adopted, f"--metadata={adopted}")
    assert outcome.status == 2 and "does not contain __cluster_metadata-0" in outcome.stderr
    assert tree(adopted) == before


def test_a_metadata_log_rules_even_if_it_is_empty(adopted: Path) -> None:
    assert states_configs(adopted)
    (adopted / METADATA).mkdir()
    assert not states_configs(adopted)
    assert expire(adopted).status == 2


@pytest.mark.parametrize("marker", [None, b"", b'{"version":0,"brokerEpoch":17}'])
@pytest.mark.parametrize("loses", ["nothing", "recovery-point-offset-checkpoint"])
def test_a_directory_on_which_a_broker_has_started_needs_its_log(
    adopted: Path, marker: bytes | None, loses: str
) -> None:
    """Configs may have changed since, and the log that would say so is lost."""
    path = adopted / ".kafka_cleanshutdown"
    path.unlink()
    (adopted / loses).unlink(missing_ok=True)
    if marker is not None:
        path.write_bytes(marker)
    assert not states_configs(adopted)
    assert read_cluster_metadata(adopted, Fs()) is None
    before = tree(adopted)
    outcome = expire(adopted)
    assert outcome.status == 2 and "--metadata DIR" in outcome.stderr
    assert tree(adopted) == before


def test_recover_does_not_make_the_directory_of_a_killed_broker_new(adopted: Path) -> None:
    (adopted / ".kafka_cleanshutdown").unlink()
    outcome = sediment("recover", adopted, "--json")
    assert outcome.status == 0 and (adopted / ".kafka_cleanshutdown").exists()
    assert not states_configs(adopted)
    before = tree(adopted)
    assert expire(adopted).status == 2
    assert tree(adopted) == before


def test_recover_of_a_directory_that_is_new_leaves_it_new(adopted: Path) -> None:
    assert sediment("recover", adopted, "--json").status == 0
    assert states_configs(adopted)


def test_a_copy_of_a_new_directory_is_new_and_its_clone_has_the_configs(adopted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(adopted, tmp_path / "copy", copy_function=shutil.copyfile))
    assert states_configs(copy)
    assert sediment("clone", copy, "--to", tmp_path / "clone", "--json").status == 0
    assert states_configs(tmp_path / "clone")
    assert opened(tmp_path / "clone").settings.origin("other", "cleanup.policy") != Origin.METADATA


def test_clone_does_not_compact_by_a_stale_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for number in range(3):
        write_segment(path / "limited-0", 3 * number, [batch_bytes(3 * number, "aaa")])
    outcome = sediment("adopt", path, "--yes", "--json", "--set=limited:cleanup.policy=compact")
    assert outcome.status == 0, outcome.stderr
    new = sediment("clone", path, "--to", tmp_path / "new", "--compact", "--json")
    assert new.partitions()["limited-0"]["compacted"], new.stderr
    (path / ".kafka_cleanshutdown").unlink()
    assert sediment("compact", path, "--json").status == 2
    stale = sediment("clone", path, "--to", tmp_path / "stale", "--compact", "--json")
    row = stale.partitions()["limited-0"]
    assert (row["compacted"], row["reason_code"]) == (False, "policy-unknown")


def test_a_damaged_checkpoint_is_an_error_and_not_ignored(adopted: Path) -> None:
    path = adopted / "bootstrap.checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    before = tree(adopted)
    outcome = expire(adopted)
    assert outcome.status == 1 and "bootstrap.checkpoint" in outcome.stderr
    assert tree(adopted) == before


def test_folders_of_other_topics_are_left_alone(adopted: Path) -> None:
    make_log(adopted, "later-0", times_ms=(LONG_AGO_MS,) * 3)
    shutil.copy(adopted / "other-0" / "partition.metadata", adopted / "limited-0" / "partition.metadata")
    before = tree(adopted)
    outcome = expire(adopted, "--broker-defaults")
    assert outcome.status == 0, outcome.stderr
    assert {name: row["status"] for name, row in outcome.partitions().items()}["later-0"] == "skipped"
    assert tree(adopted) == before


# ---------------------------------------------------------------------------------------------------- several log.dirs
@pytest.fixture
def second(adopted: Path, tmp_path: Path) -> Path:
    """Return another log directory of the same node, new too, without a checkpoint of its own."""
    path = tmp_path / "second"
    make_log(path, "limited-1", times_ms=(LONG_AGO_MS,) * 3)
    shutil.copy(adopted / "limited-0" / "partition.metadata", path / "limited-1")
    for name in ("meta.properties", ".kafka_cleanshutdown"):
        shutil.copy(adopted / name, path)
    return path


def test_the_checkpoint_is_found_as_the_metadata_log_is(adopted: Path, second: Path, tmp_path: Path) -> None:
    assert not states_configs(second)
    assert states_configs(second, adopted)
    assert states_configs(second, settings=Settings.load(None, [], metadata_dir=adopted))
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={second},{adopted}\n")
    assert states_configs(second, settings=Settings.load(config, []))
    outcome = expire(second, f"--metadata={adopted}")
    assert codes(outcome) == {"limited-1": ("expired", None)}


@pytest.mark.parametrize("started", ["adopted", "second"])
def test_a_broker_that_started_on_one_directory_of_the_node_makes_the_checkpoint_stale(
    adopted: Path, second: Path, started: str
) -> None:
    ({"adopted": adopted, "second": second}[started] / ".kafka_cleanshutdown").unlink()
    assert not states_configs(second, adopted)
    before = tree(second)
    assert expire(second, f"--metadata={adopted}").status == 2
    assert tree(second) == before


def test_a_log_in_another_directory_of_the_node_beats_a_checkpoint(adopted: Path, second: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked(tmp_path / "source") / METADATA, second / METADATA)
    found = opened(adopted, second)
    assert found.topic_ids is not None and "orders" in found.topic_ids and "limited" not in found.topic_ids
