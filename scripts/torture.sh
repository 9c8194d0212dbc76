#!/usr/bin/env bash
# Kill a real notifyd under load, KILLS times, and check what it promised.
# RATE is single notifications a second, LATER triggers and scheduled pushes.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./tests/torture -kills "${KILLS:-20}" ${RATE:+-rate "$RATE"} ${LATER:+-later "$LATER"} ${SEED:+-seed "$SEED"} ${MUTANT:+-mutant "$MUTANT"}
