"""Delta on Spark: the error without its JARs, their download, and isolation from other sessions."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs
import pytest

from sediment.jobs.datasource import register
from sediment.jobs.delta_lake import session
from sediment.jobs.delta_lake.paths import is_uri, outside_log_dirs
from sediment.jobs.delta_lake.session import coordinate, delta_session, fetched_jars
from sediment.segment_io.errors import UsageError
from tests.jobs.log_dirs import sediment, sediment_process
from tests.jobs.snapshots import Log, session_with_delta
from tests.segments import batch_bytes, write_segment


def test_the_coordinate_is_of_the_installed_packages():
    spark = re.match(r"\d+\.\d+", version("pyspark"))[0]
    assert coordinate() == f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"


def test_without_the_jars_one_sentence_names_the_command_that_brings_them(tmp_path):
    Log(tmp_path / "logs" / "t-0").append(a="1").write()
    outcome = sediment_process(
        "snapshot",
        tmp_path / "logs",
        "--to",
        tmp_path / "table",
        environment={"HOME": str(tmp_path), "XDG_CACHE_HOME": platformdirs.user_cache_dir()},
    )
    assert outcome.status == 2
    [line] = outcome.stderr.splitlines()
    assert coordinate() in line
    assert "sediment setup delta-jars" in line
    assert not (tmp_path / "table").exists()


def test_without_the_package_one_sentence_names_the_command_that_brings_it(tmp_path, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(session, "version", absent)
    Log(tmp_path / "logs" / "t-0").append(a="1").write()
    outcome = sediment("snapshot", tmp_path / "logs", "--to", tmp_path / "table")
    assert outcome.status == 2
    [line] = outcome.stderr.splitlines()
    assert "pip install delta-spark==4.4.0" in line


def test_jars_count_only_where_all_that_is_needed_was_fetched(tmp_path):
    group, artifact, release = coordinate().split(":")
    jars = tmp_path / "jars"
    jars.mkdir()
    main, storage = jars / f"{group}_{artifact}-{release}.jar", jars / f"{group}_delta-storage-{release}.jar"
    main.touch()
    assert fetched_jars(tmp_path) == ()
    storage.touch()
    (jars / f"{group}_delta-storage-0.1.0.jar").touch()
    assert set(fetched_jars(tmp_path)) == {main, storage}


def test_an_unreachable_repository_is_reported_in_one_line(tmp_path):
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers>'
        '<ibiblio name="none" m2compatible="true" root="http://127.0.0.1:9/"/></resolvers></ivysettings>'
    )
    (tmp_path / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {tmp_path / 'ivy.xml'}\n")
    outcome = sediment_process(
        "setup", "delta-jars", environment={"SPARK_CONF_DIR": str(tmp_path), "HOME": str(tmp_path / "home")}
    )
    assert outcome.status == 2
    [line] = outcome.stderr.splitlines()
    assert coordinate() in line
    assert "cannot be fetched: Connection refused" in line
    assert "check the network, or name a repository in spark.jars.repositories" in line


def write_artifact(repository: Path, artifact: str, release: str, needs: str = "", *, has_jar: bool = True) -> None:
    folder = repository / "io" / "delta" / artifact / release
    folder.mkdir(parents=True)
    name = f"<groupId>io.delta</groupId><artifactId>{artifact}</artifactId><version>{release}</version>"
    (folder / f"{artifact}-{release}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion>{name}<dependencies>{needs}</dependencies></project>"
    )
    if has_jar:
        (folder / f"{artifact}-{release}.jar").write_bytes(b"PK\5\6" + bytes(18))


def test_a_local_maven_repository_that_has_poms_without_jars_is_left_out(tmp_path):
    _, artifact, release = coordinate().split(":")
    storage = f"<groupId>io.delta</groupId><artifactId>delta-storage</artifactId><version>{release}</version>"
    home, remote = tmp_path / "home", tmp_path / "remote"
    for repository, has_jar in ((home / ".m2" / "repository", False), (remote, True)):
        write_artifact(repository, artifact, release, f"<dependency>{storage}</dependency>", has_jar=has_jar)
        write_artifact(repository, "delta-storage", release, has_jar=has_jar)
    environment = {
        "HOME": str(home),
        "SPARK_SUBMIT_OPTS": f"-Duser.home={home}",
        "DEFAULT_ARTIFACT_REPOSITORY": remote.as_uri() + "/",
        "SPARK_CONF_DIR": str(tmp_path),
    }
    outcome = sediment_process("setup", "delta-jars", environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert [Path(line.split()[0]).name for line in outcome.stdout.splitlines()] == [
        f"io.delta_{artifact}-{release}.jar",
        f"io.delta_delta-storage-{release}.jar",
    ]


def test_a_table_is_not_kept_inside_a_log_directory(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "link").symlink_to(logs)
    for place in (logs, logs / "table", tmp_path / "link" / "deep" / "table"):
        with pytest.raises(UsageError, match="outside"):
            outside_log_dirs(str(place), [logs])
    outside_log_dirs(str(tmp_path / "logs-too"), [logs])
    outside_log_dirs("s3://bucket/table", [logs])


def test_a_uri_is_distinguished_from_a_path():
    assert is_uri("s3a://bucket/table")
    assert not is_uri("/tmp/a:b")


@pytest.mark.delta
def test_the_session_reads_and_writes_delta_and_leaves_the_one_that_was_there(sc, tmp_path):
    from pyspark.sql import SparkSession

    plain = SparkSession.builder.getOrCreate()
    with session_with_delta() as spark:
        spark.range(3).write.format("delta").save(str(tmp_path / "table"))
        assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 3
        assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
        spark.conf.set("spark.sql.shuffle.partitions", "3")
        write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
        register(spark)
        assert spark.read.format("kafka-log").load(str(tmp_path / "t-0")).count() == 3
    assert plain.conf.get("spark.sql.shuffle.partitions") != "3"
    assert SparkSession.builder.getOrCreate().conf.get("spark.sql.shuffle.partitions") != "3"
    assert plain.range(2).count() == 2


@pytest.mark.delta
def test_the_session_can_be_had_again(sc, tmp_path):
    for _ in range(2):
        with session_with_delta(), delta_session(None, "again") as spark:
            assert spark.range(1).count() == 1


def test_ivys_folder_is_where_spark_is_told_to_have_it():
    assert session.ivy_folder({"spark.jars.ivy": "/somewhere"}) == Path("/somewhere")
    assert session.ivy_folder({}) == Path("~/.ivy2.5.2").expanduser()


def test_jars_that_others_can_change_are_refused_unless_their_folder_was_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    session.check_ivy_folder({})
    folder = tmp_path / ".ivy2.5.2"
    group, artifact, release = coordinate().split(":")
    jars = [folder / "jars" / f"{group}_{name}-{release}.jar" for name in (artifact, "delta-storage")]
    jars[0].parent.mkdir()
    for jar in jars:
        jar.touch(0o644)
    session.check_ivy_folder({})
    for opened, mode in ((jars[1], 0o644), (folder / "jars", 0o755), (folder, 0o700)):
        opened.chmod(0o777)
        with pytest.raises(UsageError, match="others can change them") as refused:
            session.check_ivy_folder({})
        assert "spark.jars.ivy" in str(refused.value)
        session.check_ivy_folder({"spark.jars.ivy": str(folder)})
        opened.chmod(mode)
