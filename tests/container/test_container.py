"""Dockerfile and Kubernetes manifests: files exist, commands parse, and the image, paths and user agree.

Kubernetes' own schemas accept the manifests; `hadolint`, if it is installed, checks the Dockerfile; no image is built.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from kubernetes_validate.utils import ValidationError, all_versions, validate

from sediment.jobs.cli import main
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from sediment.version import __version__
from tests.container.dockerfile import instructions as read_instructions
from tests.container.manifests import IDS, LEAST_KUBERNETES, MANIFESTS, ROOT, document, pod, steps
from tests.project.distributions import contents

DOCKERFILE = ROOT / "conf" / "container" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    return list(read_instructions(DOCKERFILE.read_text()))


def copied() -> list[str]:
    """Return the files and folders of the repository that the image gets."""
    return [
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]


def test_the_wheel_is_built_from_the_files_that_the_image_gets(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert f"-{__version__}-" in wheel.name
    assert {"sediment/jobs/cli.py", "sediment/version.py", "pyspark_kafkalog/__init__.py"} <= contents(wheel).keys()


def test_the_build_context_has_these_files_and_no_others() -> None:
    kept = {
        line for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert kept == {f"!{name}" for name in copied()}


def test_the_image_runs_the_command_as_another_user_than_root() -> None:
    found = dict(instructions())
    assert found["ENTRYPOINT"] == '["sediment"]'
    assert found["USER"] == "$UID:$GID"
    defaults = dict(rest.split("=") for name, rest in instructions() if name == "ARG")
    assert {defaults["UID"], defaults["GID"]} == {"1000"}
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    assert len(bases) == 1
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    version = re.search(r"python:(\d+)\.(\d+)", bases.pop())
    least = re.search(r"(\d+)\.(\d+)", needed)
    assert version and least and tuple(map(int, version.groups())) >= tuple(map(int, least.groups()))
    assert "openjdk-17-jre-headless" in DOCKERFILE.read_text()


@pytest.mark.parametrize("manifest", MANIFESTS, ids=IDS)
def test_every_command_of_a_manifest_parses(manifest: Path) -> None:
    for step in steps(manifest):
        if "command" in step:
            continue
        name, *arguments = step["args"]
        command = main.get_command(click.Context(main), name)
        assert command is not None and step["name"] == name
        command.make_context(name, arguments)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=IDS)
def test_a_manifest_has_the_image_and_user_of_the_dockerfile_and_only_mounts_that_exist(manifest: Path) -> None:
    spec = pod(manifest)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 1000
    assert "fsGroup" not in spec["securityContext"], "it would change the group of the broker's files"
    volumes = {volume["name"] for volume in spec["volumes"]}
    for step in steps(manifest):
        assert step["image"].endswith(f"/sediment:{__version__}")
        mounts = {mount["mountPath"]: mount for mount in step["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == volumes
        assert "subPath" not in mounts["/var/lib/kafka"], "hard links do not cross mounts"
        assert "/tmp" in mounts, "the only folder for writing, apart from that of the kernels"
        kernels = [each["value"] for each in step.get("env", ()) if each["name"] == CACHE_VARIABLE]
        is_sediment = "command" not in step
        assert kernels == ["/dev/shm/sediment"] * is_sediment, "nobody else may write there, unlike in an emptyDir"
        assert step["securityContext"]["readOnlyRootFilesystem"]
        paths = [word.partition("=")[2] or word for word in step["args"] if "/" in word]
        assert all(path.startswith(tuple(mounts)) for path in paths), paths


def test_the_nightly_run_removes_its_links_last_and_expires_only_after_verify() -> None:
    nightly = ROOT / "conf" / "kubernetes" / "cronjob.yaml"
    assert [step["name"] for step in steps(nightly)] == ["compact", "verify", "expire", "forget-before"]
    compact, verify, _, forget = steps(nightly)
    (before,) = (word.partition("=")[2] for word in compact["args"] if word.startswith("--keep-before="))
    assert before.endswith("$(RUN)") and before == verify["args"][1] == forget["args"][-1]
    assert forget["command"] == ["rm"]
    assert document(nightly)["spec"]["concurrencyPolicy"] == "Forbid"


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", [LEAST_KUBERNETES, all_versions()[-1]])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=IDS)
def test_the_schemas_of_kubernetes_accept_a_manifest_and_refuse_an_unknown_field(manifest: Path, version: str) -> None:
    whole = document(manifest)
    assert validate(whole, version, strict=True) == ".".join(version.split(".")[:2])
    whole["spec"]["unknown"] = True
    with pytest.raises(ValidationError):
        validate(whole, version, strict=True)
