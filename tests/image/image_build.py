"""The steps of a Dockerfile in a folder of this machine: a root of Debian stands for the base image.

There is no container engine: each RUN is a shell in a container of `containers`.  A build also gets the files by which
this machine reaches its package registries.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from tests.container.dockerfile import instructions
from tests.image.containers import LIMIT_SECONDS, NO_MOUNTS, NO_VARIABLES, MemoryLimit, Ran, run_in

BASE = "python:3.11-slim-bookworm"

_BASE_PACKAGES = "ca-certificates,netbase,python3.11,python3.11-venv,tzdata"
_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
_OF_REGISTRIES = ("/etc/pip.conf", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
_VARIABLES_OF_REGISTRIES = ("PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")


class NoBaseError(Exception):
    """The root of Debian cannot be had on this machine."""


@dataclass(frozen=True, slots=True)
class Image:
    """A root with what the instructions said about its containers."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=lambda: _BASE_ENVIRONMENT)
    arguments: Mapping[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()

    def run(
        self,
        command: Sequence[str],
        *,
        user: str | None = None,
        more: Mapping[str, str] = NO_VARIABLES,
        mounts: Mapping[str, Path] = NO_MOUNTS,
        is_read_only: bool = False,
        limit: MemoryLimit | None = None,
    ) -> Ran:
        """Run a command in a container of this image; the other arguments are those of `run_in`."""
        return run_in(
            self.root,
            command,
            user=user or self.user,
            folder=self.folder,
            environment={**self.environment, **more},
            mounts=mounts,
            is_read_only=is_read_only,
            limit=limit,
        )


def base_image(root: Path) -> Image:
    """Return a new root with Python 3.11 of Debian 12, as `python` too.

    Raises:
        NoBaseError: mmdebstrap is not installed, or cannot have its packages.
    """
    if shutil.which("mmdebstrap") is None:
        raise NoBaseError("mmdebstrap is not installed")
    done = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm", str(root)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise NoBaseError(f"mmdebstrap has no root of Debian: {done.stderr.strip()}")
    for file in map(Path, _OF_REGISTRIES):
        if file.exists():
            shutil.copy(file, root / file.relative_to("/"))
    for name in ("python", "python3"):
        (root / "usr" / "local" / "bin" / name).symlink_to("/usr/bin/python3.11")
    return Image(root)


def build(text: str, context: Path, scratch: Path, images: Mapping[str, Image]) -> Image:
    """Return the image of a Dockerfile whose stages begin with some of `images`.

    A stage from any other image cannot be had here, and what is copied from it is left out.
    """
    stages: dict[str, Image | None] = {}
    image: Image | None = None
    for name, rest in instructions(text):
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            image = _start(images.get(base), scratch / f"root-{len(stages)}")
            stages[stage] = image
        else:
            assert image is not None
            image = _step(image, name, rest, context, stages)
    assert image is not None
    return image


def _start(base: Image | None, root: Path) -> Image | None:
    if base is None:
        return None
    root.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(base.root), str(root)], check=True)
    return replace(base, root=root)


def _step(image: Image, name: str, rest: str, context: Path, stages: Mapping[str, Image | None]) -> Image:
    known = {**image.arguments, **image.environment}
    if name == "ARG":
        key, _, value = rest.partition("=")
        return replace(image, arguments={**image.arguments, key: value})
    if name == "ENV":
        pairs = (word.partition("=") for word in shlex.split(Template(rest).safe_substitute(known)))
        return replace(image, environment={**image.environment, **{key: value for key, _, value in pairs}})
    if name == "USER":
        return replace(image, user=Template(rest).safe_substitute(known))
    if name == "WORKDIR":
        (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return replace(image, folder=rest)
    if name == "ENTRYPOINT":
        return replace(image, entrypoint=tuple(json.loads(rest)))
    if name == "CMD":
        return image
    if name == "COPY":
        _copy(image, rest.split(), context, stages)
        return image
    assert name == "RUN", name
    registries = {key: os.environ[key] for key in _VARIABLES_OF_REGISTRIES if key in os.environ}
    done = image.run(["/bin/sh", "-c", rest], more={**image.arguments, **registries})
    assert done.status == 0, f"{rest}\n{done.stdout}\n{done.stderr}"
    return image


def _copy(image: Image, words: Sequence[str], context: Path, stages: Mapping[str, Image | None]) -> None:
    *sources, place = words
    origin = context
    if sources[0].startswith("--from="):
        stage = stages[sources.pop(0).partition("=")[2]]
        if stage is None:
            return
        origin = stage.root
    target = image.root / (Path(image.folder) / place).relative_to("/")
    for source in sources:
        found = origin / source.lstrip("/")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if origin == context else None  # as Dockerfile.dockerignore
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy(found, target)
