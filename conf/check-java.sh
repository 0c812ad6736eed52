#!/usr/bin/env bash
# Exit 0 if the Java that Spark would run is 17 or newer; otherwise print how to install it, and exit 1.
set -euo pipefail

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1 || true)
if [ "${version:-0}" -lt 17 ]; then
    found=${version:+, and $java is Java $version}
    found=${found:-, and there is no $java}
    echo "Spark needs Java 17 or newer$found: sudo apt-get install openjdk-17-jre-headless" >&2
    exit 1
fi
