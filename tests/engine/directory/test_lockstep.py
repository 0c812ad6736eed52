from collections.abc import Sequence
from functools import partial

import pytest

from sediment.engine.directory.lockstep import Steps, Wait, error_of, perform, perform_together


def call_all(waits: Sequence[Wait]) -> list[BaseException | None]:
    return list(map(error_of, waits))


def noting(log: list[str], name: str, waits: int) -> Steps[str]:
    for number in range(waits):
        log.append(f"{name}{number}")
        yield partial(log.append, f"wait for {name}{number}")
    log.append(f"end of {name}")
    return name


def fails() -> None:
    raise OSError("the disk does not answer")


def recovering() -> Steps[str]:
    try:
        yield fails
    except OSError as error:
        yield lambda: None
        return f"went on after: {error}"
    return "no error"


def failing() -> Steps[str]:
    yield fails
    return "no error"


def test_steps_are_performed_in_rounds_and_each_round_waits_once():
    log: list[str] = []
    rounds: list[int] = []

    def counted(waits: Sequence[Wait]) -> list[BaseException | None]:
        rounds.append(len(waits))
        return call_all(waits)

    assert perform_together([noting(log, "a", 1), noting(log, "b", 2)], counted) == ["a", "b"]
    assert log == ["a0", "b0", "wait for a0", "wait for b0", "end of a", "b1", "wait for b1", "end of b"]
    assert rounds == [2, 1, 0]


def test_an_error_of_a_wait_is_raised_where_the_steps_wait():
    assert perform(recovering()) == "went on after: the disk does not answer"
    with pytest.raises(OSError, match="does not answer"):
        perform(failing())


def test_steps_that_fail_do_not_end_the_others():
    log: list[str] = []
    with pytest.raises(OSError, match="does not answer"):
        perform_together([noting(log, "a", 3), failing(), noting(log, "b", 2)], call_all)
    assert log[-2:] == ["wait for a2", "end of a"]
    assert "end of b" in log


def test_steps_without_waits_return_their_result():
    assert perform(noting([], "a", 0)) == "a"
    assert perform_together([], call_all) == []
