"""The image of conf/container/Dockerfile, built in a root of its own, runs what the pages and the manifests say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import ONCE_FIRST, START_MS, Shape, write_partition
from sediment.jobs import demo
from sediment.version import __version__
from tests.container.manifests import ROOT, document, pod, steps
from tests.image.containers import MemoryLimit, Ran, limited_memory, why_no_containers
from tests.image.image_build import BASE, Image, NoBaseError, base_image, build
from tests.jobs.log_dirs import tree

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

DOCKERFILE = ROOT / "conf" / "container" / "Dockerfile"
KUBERNETES = ROOT / "conf" / "kubernetes"
POD = "sediment-nightly-1"
DATA = "/var/lib/kafka/data"
OF_IMAGE = 1000
WITHOUT_A_NAME = 1000720000  # as OpenShift gives to a project
MEMORY_BYTES = 2 << 30
NOW = f"--now-ms={START_MS + 10**9}"

# A worker needs about 1 GB for one of these partitions, so two at once do not fit beside Spark.
LARGE = Shape(total_bytes=600_000_000, keys=10_000_000, value_bytes=20, population=ONCE_FIRST)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    reason = why_no_containers()
    if reason is not None:
        pytest.skip(f"there are no containers here: {reason}")
    scratch = tmp_path_factory.mktemp("image")
    try:
        base = base_image(scratch / "base")
    except NoBaseError as error:
        pytest.skip(str(error))
    return build(DOCKERFILE.read_text(), ROOT, scratch, {BASE: base})


@pytest.fixture
def volumes(tmp_path: Path) -> dict[str, Path]:
    """Return a folder for each volume of the manifests; that of Kafka is empty."""
    found = {name: tmp_path / name for name in ("kafka", "config", "tmp", "shm")}
    for folder in found.values():
        folder.mkdir()
    (found["config"] / "server.properties").write_text(f"process.roles=broker,controller\nnode.id=1\nlog.dirs={DATA}\n")
    for name in ("tmp", "shm"):
        found[name].chmod(0o1777)
    return found


@pytest.fixture
def stopped_broker(volumes: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Return volumes with the log directory of a stopped broker."""
    demo.prepare(tmp_path / "made")
    (tmp_path / "made" / demo.LOG_DIR).rename(volumes["kafka"] / "data")
    give(volumes["kafka"], OF_IMAGE, OF_IMAGE)
    return volumes


@pytest.fixture
def limit() -> Iterator[MemoryLimit]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(limited_memory(MEMORY_BYTES))
        except OSError as error:
            pytest.skip(f"this machine gives no control over memory: {error}")
        yield found


def give(path: Path, user: int, group: int) -> None:
    for place in (path, *path.rglob("*")):
        os.chown(place, user, group)


def run_step(image: Image, spec: Mapping[str, Any], step: Mapping[str, Any], volumes: Mapping[str, Path]) -> str:
    """Run one container of a pod as a kubelet would: its user, mounts, variables and arguments; return its stdout."""
    context = spec["securityContext"]
    variables = {each["name"]: each.get("value", POD) for each in step["env"]}
    arguments = [word.replace("$(RUN)", variables.get("RUN", "")) for word in step["args"]]
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in step["volumeMounts"]}
    done = image.run(
        [*step.get("command", image.entrypoint), *arguments],
        user=f"{context['runAsUser']}:{context['runAsGroup']}",
        more=variables,
        mounts={**mounts, "/dev/shm": volumes["shm"]},
        is_read_only=step["securityContext"]["readOnlyRootFilesystem"],
    )
    assert done.status == 0, f"{step['name']}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_image_has_the_command_for_its_user(image: Image) -> None:
    assert image.user == "1000:1000" and image.entrypoint == ("sediment",)
    done = image.run([*image.entrypoint, "--version"])
    assert done.status == 0, done.stderr
    assert __version__ in done.stdout
    checks = image.run([*image.entrypoint, "doctor", "--json"])
    assert checks.status == 0, checks.stdout + checks.stderr
    assert image.run(["touch", "/opt/sediment/x"]).status != 0


def test_a_user_without_a_name_compacts_and_verifies_in_a_container_of_2_gb(
    image: Image, volumes: Mapping[str, Path], limit: MemoryLimit
) -> None:
    log_dir = volumes["kafka"] / "data"
    log_dir.mkdir()
    for number in range(2):
        write_partition(log_dir / f"bench-{number}", LARGE)
    give(volumes["kafka"], WITHOUT_A_NAME, 0)
    before = "/var/lib/kafka/before"
    options = ("--json", "--master=local[1]", NOW, "--set=bench:cleanup.policy=compact")

    def run(*arguments: str) -> Ran:
        done = image.run(
            [*image.entrypoint, *arguments, *options],
            user=f"{WITHOUT_A_NAME}:0",
            mounts={"/var/lib/kafka": volumes["kafka"], "/tmp": volumes["tmp"]},
            is_read_only=True,
            limit=limit,
        )
        assert done.status == 0, done.stdout + done.stderr
        assert limit.kills == 0
        return done

    compacted = run("compact", DATA, "--force", f"--keep-before={before}")
    verified = run("verify", before, DATA)
    assert limit.peak_bytes <= MEMORY_BYTES
    assert statuses(compacted) == ["compacted"] * 2
    assert statuses(verified) == ["correct"] * 2
    found = {(path.stat().st_uid, path.stat().st_gid) for path in volumes["kafka"].rglob("*")}
    assert found == {(WITHOUT_A_NAME, 0)}


def statuses(ran: Ran) -> list[str]:
    return [each["status"] for each in json.loads(ran.stdout)["partitions"]]


def test_the_job_plans_and_changes_nothing(image: Image, stopped_broker: Mapping[str, Path]) -> None:
    before = tree(stopped_broker["kafka"])
    manifest = KUBERNETES / "job.yaml"
    (step,) = steps(manifest)
    printed = run_step(image, pod(manifest), step, stopped_broker)
    assert "plain-0" in printed
    assert tree(stopped_broker["kafka"]) == before


def test_the_nightly_steps_compact_verify_expire_and_forget(image: Image, stopped_broker: Mapping[str, Path]) -> None:
    volumes = stopped_broker
    log_dir = volumes["kafka"] / "data"
    before = tree(log_dir)
    manifest = KUBERNETES / "cronjob.yaml"
    compact, verify, expire, forget = steps(manifest)
    run_step(image, pod(manifest), compact, volumes)
    kept = volumes["kafka"] / "before" / POD
    assert (kept / "plain-0").is_dir()
    changed = {name for name, content in tree(log_dir).items() if before.get(name) != content}
    assert any(name.startswith("plain-0/") and name.endswith(".log") for name in changed)
    run_step(image, pod(manifest), verify, volumes)
    run_step(image, pod(manifest), expire, volumes)
    run_step(image, pod(manifest), forget, volumes)
    assert not kept.exists()
    assert {path.stat().st_uid for path in volumes["kafka"].rglob("*")} == {OF_IMAGE}


def test_a_wrong_use_has_the_exit_status_at_which_the_nightly_run_gives_up(
    image: Image, volumes: Mapping[str, Path]
) -> None:
    (rule,) = document(KUBERNETES / "cronjob.yaml")["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    done = image.run([*image.entrypoint, "compact", "/missing"], mounts={"/tmp": volumes["tmp"]}, is_read_only=True)
    assert done.status in rule["onExitCodes"]["values"], done.stderr
    assert done.stderr.startswith("sediment: ") and "/missing" in done.stderr
