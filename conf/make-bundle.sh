#!/usr/bin/env bash
# Pack a wheel of Sediment, its dependencies and its compiled kernels as an environment for spark-submit --archives.
# Usage: make-bundle.sh PYTHON TOOLS WHEEL ARCHIVE.  The archive links to PYTHON, which every host needs at the same
# path; TOOLS is a Python with venv-pack.  Spark is not included, because the cluster has its own.
set -euo pipefail

python=$1 tools=$2 wheel=$3 archive=$4
environment=build/bundle

rm -rf "$environment" "$archive"
"$python" -m venv "$environment"
"$environment/bin/python" -I -m pip install --quiet --disable-pip-version-check -c constraints.txt "$wheel[spark,delta]"
"$environment/bin/python" -I -m pip uninstall --quiet --yes pyspark py4j
SEDIMENT_KERNEL_CACHE=in-tree "$environment/bin/python" -I -c \
    'from sediment.compaction.warm_up import warm_up; warm_up(everything=True)'
"$environment/bin/python" -I -m pip uninstall --quiet --yes pip
"$tools" -m venv_pack --quiet --force --prefix "$environment" --output "$archive"
chmod a+r "$archive"
rm -rf "$environment"
