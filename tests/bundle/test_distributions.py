"""A compaction and a query in Spark's SQL shell, with the wheels from the checkout and from the source archive."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import corpus_log_dir
from tests.project.distributions import bare_environment, build, install
from tests.segments import batch_bytes, write_segment

pytestmark = [pytest.mark.bundle, pytest.mark.timeout(3600)]


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


SQL = """
create table log using `kafka-log` options (path '{}', subscribe 't');
select count(*) from log where offset >= 2;
drop table log;
"""


def test_the_sql_shell_of_spark_finds_the_source_of_an_installed_wheel(built, tmp_path):
    programs = install(built.from_archive, tmp_path / "environment")
    log_dir = tmp_path / "logs"
    write_segment(log_dir / "t-0", 0, [batch_bytes(0, "abc")])
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    home = Path(pyspark.__file__).parent
    done = subprocess.run(
        [home / "bin" / "spark-sql", "--master", "local[1]", "-e", SQL.format(log_dir)],
        env=bare_environment(tmp_path, SPARK_HOME=str(home), PYSPARK_PYTHON=str(programs / "python")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["1"]
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
