"""`sediment setup warm-up`: the files that it writes, and runs without them."""

from __future__ import annotations

import platformdirs
import pytest

from sediment.jobs.spark.cds_options import stamp_path
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from tests.jobs.log_dirs import make_log_dir, sediment_process
from tests.logs import write_random_log


@pytest.fixture
def environment(tmp_path):
    """Return an environment with a cache folder of its own, but for the compiled code, which takes long."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), CACHE_VARIABLE: platformdirs.user_cache_dir("sediment")}


def test_spark_starts_with_the_archive_and_with_one_that_is_garbage(tmp_path, environment):
    write_random_log(tmp_path / "source", 1)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    warmed = sediment_process("setup", "warm-up", environment=environment)
    assert warmed.status == 0, warmed.stderr
    (archive,) = (tmp_path / "cache" / "sediment").glob("spark-*.jsa")
    assert str(archive) in warmed.stdout
    assert sorted(archive.parent.iterdir()) == [archive, stamp_path(archive)]

    def dry_run():
        options = (
            "--broker-defaults",
            "--set=cleanup.policy=compact",
            "--force",
            "--dry-run",
            "--json",
            "--master=local[1]",
        )
        return sediment_process("compact", log_dir, *options, environment=environment)

    def complaints(outcome):
        """Return the lines of stderr except those that report progress every ten seconds."""
        return [line for line in outcome.stderr.splitlines() if not line.startswith("cleaning ")]

    with_archive = dry_run()
    assert (with_archive.status, complaints(with_archive)) == (0, [])
    archive.unlink()  # a JVM that is still ending has the other one mapped
    archive.write_bytes(b"not an archive" * 1000)
    with_garbage = dry_run()
    assert (with_garbage.status, complaints(with_garbage)) == (0, [])


def test_a_cache_folder_that_cannot_be_written_is_one_sentence(tmp_path, environment):
    (tmp_path / "cache").write_text("a file")
    warmed = sediment_process("setup", "warm-up", environment=environment)
    assert warmed.status == 2
    assert warmed.stderr.startswith("sediment: the archive of Spark's classes cannot be made")
    assert warmed.stderr.count("\n") == 1
