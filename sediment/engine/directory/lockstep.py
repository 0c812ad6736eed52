"""Work that yields its waits for the disk, so that one thread can do all the rest of many pieces of work.

    each round    the next step of each piece of work, one after another  |  their waits, at the same time

If each piece of work had its own thread, the threads would take Python's interpreter from each other at every system
call: a commit of a small partition would then take twice as much processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

Result = TypeVar("Result")

Wait = Callable[[], object]
"""A call that waits for the disk, such as a sync."""

Steps = Generator[Wait, None, Result]
"""Work that yields each wait instead of calling it; an error of the wait is raised where the work yielded it."""


def perform(steps: Steps[Result]) -> Result:
    """Perform `steps` to their end, and call what they yield."""
    (result,) = perform_together([steps], lambda waits: list(map(error_of, waits)))
    return result


def perform_together(
    many: Iterable[Steps[Result]], wait_for_all: Callable[[Sequence[Wait]], Sequence[BaseException | None]]
) -> list[Result]:
    """Perform each of `many` to its end; `wait_for_all` calls the waits of one round, and returns their errors.

    If one of them raises an error, the others are still performed to their end; then the first error is raised.  An
    error of `wait_for_all` itself is raised in all that wait.
    """
    results: dict[int, Result] = {}
    failures: list[BaseException] = []
    active: list[tuple[int, Steps[Result], BaseException | None]] = [(n, steps, None) for n, steps in enumerate(many)]
    while active:
        waiting: list[tuple[int, Steps[Result], Wait]] = []
        for number, steps, error in active:
            try:
                wait = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                results[number] = end.value
            except BaseException as failure:
                failures.append(failure)
            else:
                waiting.append((number, steps, wait))
        try:
            errors = wait_for_all([wait for _, _, wait in waiting])
        except BaseException as error:
            errors = [error] * len(waiting)
        active = [(number, steps, error) for (number, steps, _), error in zip(waiting, errors, strict=True)]
    try:
        if failures:
            raise failures[0]
    finally:
        failures.clear()  # or the error, its traceback and this frame would keep each other in memory
    return [results[number] for number in sorted(results)]


def error_of(wait: Wait) -> BaseException | None:
    """Call `wait`, and return its error."""
    try:
        wait()
    except BaseException as error:
        return error
    return None
