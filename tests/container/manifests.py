"""The manifests in conf/kubernetes as documents, and the steps of their pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "conf" / "kubernetes").glob("*.yaml"))
LEAST_KUBERNETES = "1.29"  # the schemas of older ones demand conditions in every rule of a podFailurePolicy
IDS = [path.stem for path in MANIFESTS]


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def pod(path: Path) -> dict[str, Any]:
    spec = document(path)["spec"]
    found: dict[str, Any] = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the containers of a manifest in the order in which they run."""
    return [*pod(path).get("initContainers", ()), *pod(path)["containers"]]
