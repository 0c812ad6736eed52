#!/usr/bin/env bash
# Pack a wheel of Sediment, its dependencies and its compiled kernels as an environment for spark-submit --archives.
# Usage: make-bundle.sh PYTHON TOOLS WHEEL NAME.  NAME.tar.gz links to PYTHON, which every host needs at the same path;
# NAME.cdx.json lists its packages with versions and licences.  TOOLS is a Python with venv-pack and cyclonedx-py.
# Spark is not included, because the cluster has its own.
#
# Two builds have the same bytes: every file has the time of SOURCE_DATE_EPOCH, no owner and no trace of the umask or
# of this folder; compiled Python refers to its sources by hash, not by time; and sets of strings have one order.
set -euo pipefail

python=$1 tools=$2 wheel=$3 name=$4
environment=build/bundle packed=build/bundle-packed
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 LC_ALL=C
unset PYTHONPATH
umask 022

rm -rf "$environment" "$packed" "$name".*
"$python" -m venv "$environment"
inside=$environment/bin/python
"$inside" -I -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt "$wheel[spark,delta]"
"$inside" -I -m pip uninstall --quiet --yes pyspark py4j
"$inside" -I -m pip uninstall -qq --yes setuptools pip

# The folder of this build is in the path of the wheel, in the command of venv, and in the scripts, whose hash no longer
# holds anyway when venv-pack has changed their first line.
packages=$(echo "$environment"/lib/python3.*/site-packages)
rm "$packages"/kafka_sediment-*.dist-info/direct_url.json
sed -i -e '/direct_url\.json,/d' -e 's|^\(\.\./[^,]*\),.*|\1,,|' "$packages"/*.dist-info/RECORD
sed -i '/^command = /d' "$environment/pyvenv.cfg"

# A script runs the Python beside it.  In pip's line is the path of this folder, which venv-pack misses if it has spaces.
"$inside" -I - "$environment/bin" <<'PYTHON'
import re
import sys
from pathlib import Path

START = rb"\A(#!.*/bin/python.*\n|#!/bin/sh\n'''exec' .*\n' '''\n)"
BESIDE = b"""#!/bin/sh
'''exec' "$(dirname "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
for script in Path(sys.argv[1]).iterdir():
    if not script.is_symlink():
        script.write_bytes(re.sub(START, lambda _: BESIDE, script.read_bytes()))
PYTHON

# numba compares the time of a kernel's source.
find "$environment" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
SEDIMENT_KERNEL_CACHE=in-tree "$inside" -P -s -c \
    'from sediment.compaction.warm_up import warm_up; warm_up(everything=True)'
"$inside" -P -m compileall -q --invalidation-mode unchecked-hash -s "$environment" "$packages" || true

"$tools" -m cyclonedx_py environment --output-reproducible --output-format JSON --output-file "$name.cdx.json" "$inside"

"$tools" -m venv_pack --quiet --force --format tar --prefix "$environment" --output "$packed.tar"
mkdir "$packed"
tar -C "$packed" -xf "$packed.tar"
(cd "$packed" && tar --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=go=u-w -cf - -- *) | gzip --no-name > "$name.tar.gz"
rm -rf "$environment" "$packed" "$packed.tar"
