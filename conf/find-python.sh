#!/usr/bin/env bash
# Print the Python for the environment: $PYTHON, or the first working Python 3.11 or newer on the PATH.
set -euo pipefail

for python in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3}; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "Sediment needs Python 3.11 or newer: sudo apt-get install python3 python3-venv, or name one in PYTHON" >&2
exit 1
