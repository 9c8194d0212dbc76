#!/usr/bin/env bash
# Measures the figures of docs/performance.md. ONLY=P2 runs one, SHORT=1 the short form.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./tests/bench ${ONLY:+-only "$ONLY"} ${SHORT:+-short} "$@"
