#!/usr/bin/env bash
# Pack a wheel of Sediment, what it depends on and its compiled kernels as an environment for spark-submit --archives.
# Usage: make-bundle.sh PYTHON WHEEL ARCHIVE.  The archive links to the Python that PYTHON is made of, which every host
# needs under the same path; Spark itself is the cluster's.
set -euo pipefail

python=$1 wheel=$2 archive=$3
environment=build/bundle

rm -rf "$environment"
"$python" -m venv "$environment"
"$environment/bin/python" -I -m pip install --quiet --disable-pip-version-check -c constraints.txt "$wheel[delta]"
"$environment/bin/python" -I -m pip uninstall --quiet --yes pyspark py4j
SEDIMENT_KERNEL_CACHE=in-tree "$environment/bin/python" -I -c \
    'from sediment.compaction.warm_up import warm_up; warm_up()'
"$environment/bin/python" -I -m pip uninstall --quiet --yes pip
"$python" -m venv_pack --quiet --force --prefix "$environment" --output "$archive"
