#!/usr/bin/env bash
# Install into an environment, which is made if it does not exist, and say which packages are fetched meanwhile.
# Usage: install.sh ENVIRONMENT ARGUMENT…   (the arguments are those of pip install)
set -euo pipefail

environment=$1
shift
python=$environment/bin/python
install=(-m pip install --disable-pip-version-check --progress-bar off -c constraints.txt)

[ -x "$python" ] || "$(conf/find-python.sh)" -m venv "$environment"
"$python" "${install[@]}" --quiet pip
"$python" "${install[@]}" "$@" | sed -un 's/^ *\(Downloading\|Using cached\) \([^ ]*\.whl\|[^ ]*\.gz\) /  \2 /p'
echo "compiling Sediment's loops: once, half a minute"
"$environment/bin/sediment" setup warm-up || true # without it, the first run compiles them
