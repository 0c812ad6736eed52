"""JVM options that use an archive of the classes that Spark loads at its start, and the check of this archive.

With the archive, a JVM maps the classes instead of parsing JARs.  `cds_archive` makes the archive: in the background
after the first local run without an archive, or in `sediment setup warm-up`.

    spark-<version>-<digest>.jsa          the archive, with a digest of Java's and Spark's files
    spark-<version>-<digest>.jsa.stamp    JSON: the state of the complete archive, or the reason why none exists

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

import platformdirs

from sediment.jobs.spark.java import java_command
from sediment.jobs.spark.worker_python import safe_environment
from sediment.segment_io.fs import FileStamp, Fs
from sediment.segment_io.safe_paths import check_path, refuse_cache, safe_folder

BACKGROUND_VARIABLE = "SEDIMENT_CLASS_ARCHIVE"
"""Environment variable; with the value `off`, no archive is made in the background."""

_MAKER = "sediment.jobs.spark.cds_archive"  # a module name, not an import, because the module imports Spark
_RETRY_SECONDS = 86_400
_OF_JAVA = ("release", "lib/modules", "lib/server/libjvm.so")
_STATE, _FAILURE = "file", "failure"


def archive_path() -> Path:
    from pyspark import __version__

    return Path(platformdirs.user_cache_dir("sediment")) / f"spark-{__version__}-{_digest()}.jsa"


def stamp_path(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.stamp")


def usable_archive() -> Path | None:
    path = archive_path()
    # An archive is used only if its stamp describes its file, so an incomplete or changed archive is never
    # used, and only if nobody but this user and root can change it, because a JVM runs what it finds there.
    is_complete = _stamp(path).get(_STATE) is not None and _stamp(path)[_STATE] == _state(path)
    if not is_complete or " " in str(path):
        return None
    try:
        check_path(path)
    except OSError as error:
        refuse_cache(error)
        return None
    return path


def archive_options() -> str:
    path = usable_archive()
    # A JVM ignores an archive that was made by another JVM or from other JARs.
    return "" if path is None else f"-Xshare:auto -Xlog:cds*=off -XX:SharedArchiveFile={path}"


def is_worth_making() -> bool:
    """Return True if a background process should make the archive: none exists, and no attempt has failed today."""
    if os.environ.get(BACKGROUND_VARIABLE) == "off" or usable_archive() is not None:
        return False
    path = archive_path()
    if _FAILURE not in _stamp(path):
        return True
    return time.time() - stamp_path(path).stat().st_mtime > _RETRY_SECONDS


def make_archive_in_background() -> None:
    if not is_worth_making():
        return
    with suppress(OSError):
        safe_folder(archive_path().parent)
        process = subprocess.Popen(
            [sys.executable, "-m", _MAKER],
            env=safe_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=process.wait, name="sediment-archive", daemon=True).start()


def stamp_complete(archive: Path, fs: Fs) -> None:
    fs.replace_file(stamp_path(archive), json.dumps({_STATE: _state(archive)}).encode())


def stamp_failed(archive: Path, why: str, fs: Fs) -> None:
    fs.replace_file(stamp_path(archive), json.dumps({_FAILURE: why}).encode())


def _stamp(archive: Path) -> dict[str, object]:
    try:
        found = json.loads(stamp_path(archive).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _state(archive: Path) -> dict[str, int | None] | None:
    stamp: FileStamp | None = Fs().file_stamp(archive)
    return None if stamp is None else asdict(stamp)


@cache
def _digest() -> str:
    from pyspark.find_spark_home import _find_spark_home

    java = Path(shutil.which(java_command()) or java_command()).resolve()
    files = [java, *(java.parent.parent / name for name in _OF_JAVA)]
    files += sorted((Path(_find_spark_home()) / "jars").glob("*.jar"))
    fs = Fs()
    found = [(str(file), fs.identity(str(file))) for file in files]
    lines = "\n".join(f"{name} {state and state[1:]}" for name, state in found)
    return hashlib.sha256(lines.encode()).hexdigest()[:12]
