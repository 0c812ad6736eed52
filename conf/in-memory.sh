#!/usr/bin/env bash
# Run a command with TMPDIR in memory, where a sync of a file costs nothing, and remove that folder afterwards.
# TMPDIR stays as it is where it is set, or where /dev/shm is small, full, or allows no programs.
set -euo pipefail

needed_kib=$((6 * 1024 * 1024))
free_kib=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 || true)
memory_kib=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null || true)

if [ -z "${TMPDIR:-}" ] && [ "${free_kib:-0}" -ge "$needed_kib" ] && [ "${memory_kib:-0}" -ge $((2 * needed_kib)) ]; then
    folder=$(mktemp -d /dev/shm/sediment.XXXXXX)
    chmod 711 "$folder"  # some tests run as another user
    trap 'rm -rf "$folder"' EXIT
    printf '#!/bin/sh\n' > "$folder/probe" && chmod +x "$folder/probe"
    if "$folder/probe" 2>/dev/null; then
        export TMPDIR=$folder
    fi
fi
"$@"
