#!/usr/bin/env bash
# Let notifications fail, repair their provider, and replay them while the process
# is killed. SHORT=1: a tenth of them.
set -euo pipefail
cd "$(dirname "$0")/.."
letters=100000 rate=4000 kills=10
if [ -n "${SHORT:-}" ]; then letters=10000 rate=1000 kills=3; fi
exec go run ./tests/replay -letters "$letters" -rate "$rate" -kills "${KILLS:-$kills}" ${SEED:+-seed "$SEED"}
