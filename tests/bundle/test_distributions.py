"""A compaction with the wheel from the checkout and with the wheel from the source archive."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import corpus_log_dir
from tests.project.distributions import bare_environment, build, install

pytestmark = [pytest.mark.bundle, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("built"))


@pytest.mark.parametrize("wheel", ["from_checkout", "from_archive"])
def test_an_environment_with_the_wheel_compacts(built, tmp_path, wheel):
    programs = install(getattr(built, wheel), tmp_path / "environment")
    case = load_case("plain", tmp_path / "corpus")
    log_dir, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0])])
    done = subprocess.run(
        [programs / "sediment", "compact", log_dir, "--json", "--force", "--now-ms=1700001000000", *sets],
        env=bare_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["partitions"][0]["status"] == "compacted"
    assert_same_log(log_dir / case.partition, case.rounds[0].after, case.compressed)
