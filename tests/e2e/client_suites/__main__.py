"""The test suites of Kafka clients against a live server: those tests that passed once have to pass again.

    python -m tests.e2e.client_suites [--librdkafka DIR]

franz-go comes from Go's module proxy.  librdkafka's suite is only in its source tree: DIR is a checkout in which
`tests/test-runner` is built.  The text files of this package list the tests that have to pass.  If more tests pass,
their names are printed, to be added.

The exit status is 0 if all listed tests pass, 1 if one does not, and 2 if a suite cannot be had.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.test_live_serve import new_node
from tests.served import serving

FRANZ_GO = "github.com/twmb/franz-go"
FRANZ_GO_VERSION = "v1.22.2"
_RECORDS = 30_000
_LIMIT_SECONDS = 900
_GO_RESULT = re.compile(r"^ *--- PASS: (\S+)", re.MULTILINE)
_RUNNER_RESULT = re.compile(r"(\d{4}_\w+)\s*\|[^|]*PASSED")
_COLOUR = re.compile(r"\x1b\[\d+m")
_SETTINGS = ("auto.create.topics.enable=true", "num.partitions=4")


class SuiteUnavailableError(Exception):
    """A suite cannot be downloaded or built; the message says why."""


def listed(name: str) -> list[str]:
    """Return the names of the tests of a suite that have to pass."""
    return (Path(__file__).parent / f"{name}.txt").read_text().split()


def run(*command: str, folder: Path, **more: str) -> str:
    """Return what a program prints, whatever its status is."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    return done.stdout


def franz_go(bootstrap: str, folder: Path) -> set[str]:
    """Return the names of the tests of franz-go that pass.

    Raises:
        SuiteUnavailableError: there is no Go, or the module cannot be downloaded.
    """
    if shutil.which("go") is None:
        raise SuiteUnavailableError("franz-go needs Go; install it")
    program = folder / "kgo.test"
    (folder / "go.mod").write_text("module suites\n")
    said = run("go", "get", "-t", f"{FRANZ_GO}/pkg/kgo@{FRANZ_GO_VERSION}", folder=folder)
    said += run("go", "test", "-c", "-o", str(program), f"{FRANZ_GO}/pkg/kgo", folder=folder)
    if not program.exists():
        raise SuiteUnavailableError(f"franz-go cannot be built: {said}")
    tests = "|".join(sorted({name.partition("/")[0] for name in listed("franz-go")}))
    said = run(
        *(str(program), "-test.v", "-test.timeout", f"{_LIMIT_SECONDS}s", "-test.run", f"^({tests})$"),
        folder=folder,
        KGO_SEEDS=bootstrap,
        KGO_TEST_RF="1",
        KGO_TEST_RECORDS=str(_RECORDS),
        KGO_LOG_LEVEL="none",
    )
    return set(_GO_RESULT.findall(said))


def librdkafka(source: Path, bootstrap: str, folder: Path) -> set[str]:
    """Return the names of the tests of librdkafka that pass.

    Raises:
        SuiteUnavailableError: the suite is not built.
    """
    tests = source.absolute() / "tests"
    if not (tests / "test-runner").exists():
        raise SuiteUnavailableError(f"{tests} has no test-runner; build it: make libs && make -C tests test-runner")
    settings = folder / "test.conf"
    settings.write_text(f"metadata.broker.list={bootstrap}\ntest.timeout.multiplier=2\n")
    found: set[str] = set()
    for number in sorted({name[:4] for name in listed("librdkafka")}):
        said = run(
            *("./test-runner", "-p1", "-Q"),
            folder=tests,
            TESTS=number,
            RDKAFKA_TEST_CONF=str(settings),
            LD_LIBRARY_PATH="../src:../src-cpp",
        )
        found |= set(_RUNNER_RESULT.findall(_COLOUR.sub("", said)))
    return found


def failures(name: str, suite: Callable[[str, Path], set[str]]) -> Iterator[str]:
    """Run a suite on a server of its own, and yield the listed tests that do not pass."""
    with tempfile.TemporaryDirectory() as home:
        data, folder = new_node(Path(home, "data")), Path(home, "suite")
        folder.mkdir()
        with serving(data, *(each for setting in _SETTINGS for each in ("--set", setting))) as served:
            passed = suite(served.bootstrap, folder)
    wanted = set(listed(name))
    print(f"{name}: {len(wanted & passed)} of {len(wanted)} listed tests pass")
    for test in sorted(name for name in passed - wanted if not name.endswith(("_local", "_mock"))):
        print(f"{name}: {test} passes too; add it to {name}.txt")
    yield from (f"{name}: {test} does not pass" for test in sorted(wanted - passed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--librdkafka", type=Path, metavar="DIR", help="a checkout with tests/test-runner built")
    source = parser.parse_args().librdkafka
    suites: dict[str, Callable[[str, Path], set[str]]] = {"franz-go": franz_go}
    if source is None:
        print("librdkafka: left out; give --librdkafka DIR")
    else:
        suites["librdkafka"] = lambda bootstrap, folder: librdkafka(source, bootstrap, folder)
    failed: list[str] = []
    try:
        for name, suite in suites.items():
            failed += failures(name, suite)
    except SuiteUnavailableError as error:
        print(error)
        return 2
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
