"""The ranges of config values, checked when a config is built.

Field names are Kafka's keys with underscores, so an error can name the key that the user wrote.

Source: the validators of Kafka's LogConfig, TopicConfig and AbstractKafkaConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

_LOWEST = -INT64_MAX - 1


@dataclass(frozen=True, slots=True)
class Whole:
    low: int
    high: int = INT64_MAX
    also: tuple[int, ...] = ()

    def holds(self, value: object) -> bool:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and (self.low <= value <= self.high or value in self.also)  # type: ignore[operator]

    def __str__(self) -> str:
        return " or ".join([f"a whole number from {self.low} to {self.high}", *map(str, self.also)])


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `low` to `high`; with `above_low`, the number must be greater than `low`."""

    low: float
    high: float
    above_low: bool = False

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self.above_low and value == self.low)

    def __str__(self) -> str:
        return f"a number {'above' if self.above_low else 'from'} {self.low:g} up to {self.high:g}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the words; if `several` is True, a tuple that contains each word at most once."""

    words: tuple[str, ...]
    several: bool = False

    def holds(self, value: object) -> bool:
        if not self.several:
            return isinstance(value, str) and value in self.words
        return isinstance(value, tuple) and len(set(value)) == len(value) and set(value) <= set(self.words)

    def __str__(self) -> str:
        return f"{'any of' if self.several else 'one of'} {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Truth:
    def holds(self, value: object) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "True or False"


Range = Whole | Real | OneOf | Truth

COUNT = Whole(0)
AT_LEAST_ONE = Whole(1)
INT = Whole(0, INT32_MAX)
POSITIVE_INT = Whole(1, INT32_MAX)
ANY_LONG = Whole(_LOWEST)


def check_ranges(config: object, ranges: Mapping[str, Range]) -> None:
    for field, allowed in ranges.items():
        value = getattr(config, field)
        if not allowed.holds(value):
            raise SettingsError(f"{field.replace('_', '.')} is {value!r}", advice=f"give {allowed}")
