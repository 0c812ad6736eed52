"""Retries against an S3 server: transient errors are retried, permanent errors are reported at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product

import pytest

from sediment.segment_io.stores import Store
from tests.object_server import CUT_OFF, RESET, ObjectHandler, ObjectServer, running_server


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with running_server() as running:
        yield running


_CONTENT = b"0123456789" * 100


def _reads(server: ObjectServer) -> None:
    server.objects["/bucket/logs/t-0/00000000000000000000.log"] = _CONTENT
    assert server.store().read("t-0/00000000000000000000.log") == _CONTENT


def _lists(server: ObjectServer) -> None:
    server.objects["/bucket/logs/t-0/00000000000000000000.log"] = _CONTENT
    files = server.store().files()
    assert {name: file.size_bytes for name, file in files.items()} == {"t-0/00000000000000000000.log": len(_CONTENT)}


def _writes(server: ObjectServer) -> None:
    assert server.store().write("t-0/x.log", [_CONTENT[:400], _CONTENT[400:]]) == len(_CONTENT)
    assert server.objects["/bucket/logs/t-0/x.log"].find(_CONTENT[:100]) >= 0


_USES = [_reads, _lists, _writes]
_TROUBLES: list[list[int | str]] = [[503], [502], [503, 500, 502], [RESET, RESET], [429, RESET, 503]]


def _use_in_trouble(use: Callable[[ObjectServer], None], trouble: list[int | str]) -> list[int | str]:
    """Use a server that is in trouble, and return the trouble that is left."""
    with running_server() as server:
        server.trouble = list(trouble)
        use(server)
        return server.trouble[max(server.asked.values()) :]


@pytest.fixture(scope="module")
def used() -> Iterator[dict[tuple[str, str], Future[list[int | str]]]]:
    """Use a server for each kind of use and trouble, all at the same time, because every one of them waits."""
    cases = list(product(_USES, _TROUBLES))
    with ThreadPoolExecutor(len(cases)) as threads:
        yield {(use.__name__, str(trouble)): threads.submit(_use_in_trouble, use, trouble) for use, trouble in cases}


@pytest.mark.parametrize("trouble", _TROUBLES, ids=str)
@pytest.mark.parametrize("use", _USES)
def test_trouble_that_passes_is_waited_for(
    used: dict[tuple[str, str], Future[list[int | str]]],
    use: Callable[[ObjectServer], None],
    trouble: list[int | str],
) -> None:
    assert used[use.__name__, str(trouble)].result() == []


def test_a_body_that_is_cut_off_is_never_taken_for_the_content(server: ObjectServer) -> None:
    server.trouble = [CUT_OFF]
    _reads(server)


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_told_at_once(server: ObjectServer, status: int) -> None:
    server.objects["/bucket/logs/x"] = _CONTENT
    server.trouble = [status] * 50
    started = time.monotonic()
    with pytest.raises(OSError):
        server.store().write("x", [_CONTENT])
    assert server.asked["PUT"] == 1
    assert time.monotonic() - started < 5


def test_trouble_that_stays_ends_with_the_error_after_some_attempts(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sediment.segment_io.stores._ATTEMPTS", 3)
    server.trouble = [503] * 50
    with pytest.raises(OSError) as raised:
        server.store().write("x", [_CONTENT])
    assert server.asked["PUT"] == 3
    assert "bucket/logs/x" in str(raised.value.filename) and "secret" not in str(raised.value.filename)


def test_credentials_that_the_uri_does_not_hold_come_from_the_environment(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    seen = []
    answer = ObjectHandler.do_PUT

    def noting(handler: ObjectHandler) -> None:
        seen.append(handler.headers["Authorization"])
        answer(handler)

    monkeypatch.setattr(ObjectHandler, "do_PUT", noting)
    store = server.store()
    Store(store.where.replace("key:secret@", "")).write("x", [_CONTENT])
    assert all("from-the-environment" in authorization for authorization in seen) and seen
