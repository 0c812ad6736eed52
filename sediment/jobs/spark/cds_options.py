"""JVM options for an archive of the classes that Spark loads when it starts.

With the archive, a JVM maps the classes instead of parsing JARs.  `sediment warm-up` makes it once (`cds_archive`), and
every later local run uses it.  Invariant: the JVM itself checks that an archive was made by the same JVM and for the
same JARs, and otherwise starts without it.  So an archive never makes a run fail.

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs


def archive_path() -> Path:
    """Return the path of the archive for this version of Spark, whether it exists or not."""
    from pyspark import __version__

    return Path(platformdirs.user_cache_dir("sediment")) / f"spark-{__version__}.jsa"


def archive_options() -> str:
    """Return the JVM options that use the archive; empty if there is none."""
    path = archive_path()
    if not path.is_file() or " " in str(path):
        return ""
    return f"-Xshare:auto -Xlog:cds*=off -XX:SharedArchiveFile={path}"
