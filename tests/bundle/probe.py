"""A job that prints as JSON the import paths of executors, and their numbers of compiled and cached kernels."""

import json
import sys
from pathlib import Path

from pyspark import SparkContext


def found(_: object) -> dict[str, object]:
    import numba
    import pyspark

    import sediment
    from sediment.compaction import warm_up
    from sediment.compaction.kernels import sweep

    warm_up.warm_up()
    stats = [kernel.stats for kernel in vars(sweep).values() if hasattr(kernel, "stats")]
    return {
        "files": [sediment.__file__, sweep.__file__, numba.__file__],
        "pyspark": pyspark.__file__,
        "path": sys.path,
        "folder": str(Path.cwd()),
        "compiled": sum(sum(each.cache_misses.values()) for each in stats),
        "cached": sum(sum(each.cache_hits.values()) for each in stats),
    }


if __name__ == "__main__":
    with SparkContext(appName="probe") as sc:
        print(json.dumps(sc.parallelize(range(2), 2).map(found).collect()))
