"""The chart of `docs/images/speed.svg`: how many times as fast as Kafka's cleaner, from the table of the race.

The chart has colours of its own for pages with a dark background, and needs no font of the network.

    .venv/bin/python -m benchmarks.reporting.speed_chart     # draw it anew from benchmarks/results/performance.md
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "benchmarks" / "results" / "performance.md"
CHART = _ROOT / "docs" / "images" / "speed.svg"

_RACE = re.compile(r"<!-- race -->(.*?)<!-- /race -->", re.DOTALL)
_RATIO = re.compile(r"([0-9.]+) \(([0-9.]+) to ([0-9.]+)\)")
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 820, 350, 60, 64, 24
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.paper { fill: #ffffff; } .bar { fill: #00796b; } .range, .kafka { stroke: #24292f; }
.title { font-weight: 600; } .kafka { stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .paper { fill: #161b22; } .bar { fill: #4db6ac; } .range, .kafka { stroke: #e6edf3; }
}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """Kafka's time over Sediment's on some data: the median, the smallest and the largest of all rounds."""

    data: str
    median: float
    low: float
    high: float


def bars(text: str) -> list[Bar]:
    """Return a bar for each row of the table between the page's marks `race`.

    Raises:
        ValueError: the page has no such marks.
    """
    race = _RACE.search(text)
    if race is None:
        raise ValueError("the page has no marks of the race; add <!-- race --> and <!-- /race -->")
    rows = [line.split("|") for line in race[1].splitlines() if line.startswith("|")]
    found = ((cells[1].strip().replace("`", ""), _RATIO.search("|".join(cells))) for cells in rows)
    return [Bar(data, *map(float, ratio.groups())) for data, ratio in found if ratio is not None]


def chart(shown: list[Bar]) -> str:
    """Return the bars as SVG."""
    scale = (_WIDTH - _LEFT - _RIGHT) / max(bar.high for bar in shown)
    height = _TOP + _ROW * len(shown) + 12
    kafka = f"{_LEFT + scale:.1f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        "<title>How many times as fast as Kafka's cleaner</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>',
        '<text class="title" x="16" y="26">compact: how many times as fast as Kafka\'s cleaner</text>',
        f'<text x="{kafka}" y="{_TOP - 10}" text-anchor="middle">1 = Kafka</text>',
    ]
    for number, bar in enumerate(shown):
        top = _TOP + _ROW * number
        middle, end = top + _ROW / 2, _LEFT + scale * bar.high
        lines += [
            f'<text x="{_LEFT - 10}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(bar.data)}</text>',
            f'<rect class="bar" x="{_LEFT}" y="{top + 4}" width="{scale * bar.median:.1f}" height="{_ROW - 8}"/>',
            f'<path class="range" d="M{_LEFT + scale * bar.low:.1f} {middle:g}H{end:.1f}"/>',
            f'<text x="{end + 6:.1f}" y="{middle + 4.5:.1f}">{bar.median:.1f}</text>',
        ]
    lines += [f'<path class="kafka" d="M{kafka} {_TOP - 4}V{height - 10}"/>', "</svg>"]
    return "\n".join(lines) + "\n"


def draw(page: Path = PAGE, file: Path = CHART) -> None:
    """Draw the chart of `page` into `file`."""
    file.write_text(chart(bars(page.read_text())))


if __name__ == "__main__":
    draw()
