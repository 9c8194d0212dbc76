#!/usr/bin/env bash
# Kills a real notifyd under load, KILLS times, and checks its promises. RATE is the number
# of single notifications a second, LATER that of triggers and scheduled pushes together.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./tests/torture -kills "${KILLS:-20}" ${RATE:+-rate "$RATE"} ${LATER:+-later "$LATER"} ${SEED:+-seed "$SEED"} ${MUTANT:+-mutant "$MUTANT"}
