"""The units of time."""

from __future__ import annotations

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
MS_PER_SECOND = 1000
