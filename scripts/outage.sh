#!/usr/bin/env bash
# Stop a real notifyd while triggers become due, start it again, and check that
# all fire in time. SHORT=1 is the short form: 5,000 triggers, 20 s.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${SHORT:-}" ]; then
  set -- -n 5000 -stop 20s "$@"
fi
exec go run ./tests/outage ${MUTANT:+-mutant "$MUTANT"} "$@"
