"""A text buffer that stands for a terminal or a pipe."""

from __future__ import annotations

from io import StringIO


class StreamText(StringIO):
    """The text that a terminal or, without `is_terminal`, a pipe receives."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal
