"""JVM options for an archive of the classes that Spark loads when it starts.

With the archive, a JVM maps the classes instead of parsing JARs.  `sediment warm-up` creates the archive once
(`cds_archive`), and every later local run uses it.  Invariant: an archive never makes a run fail, because a JVM ignores
an archive that was made by another JVM or from other JARs.

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
