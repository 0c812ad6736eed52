"""Text of sizes and numbers for people."""

from __future__ import annotations

from collections.abc import Callable

_bytes_are_plain = False


def show_plain_bytes() -> Callable[[], None]:
    """Show sizes as plain bytes until the returned function is called."""
    global _bytes_are_plain
    _bytes_are_plain = True

    def end() -> None:
        global _bytes_are_plain
        _bytes_are_plain = False

    return end


def human_bytes(size_bytes: int) -> str:
    if _bytes_are_plain:
        return str(size_bytes)
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def counted(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}es" if noun.endswith("ch") else f"{number} {noun}s"
