#!/usr/bin/env bash
# Kill a real notifyd under load, KILLS times, and check what it promised.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./tests/torture -kills "${KILLS:-20}" ${SEED:+-seed "$SEED"} ${MUTANT:+-mutant "$MUTANT"}
