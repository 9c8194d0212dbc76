#!/usr/bin/env bash
# Simulates TRIALS power cuts under the embedded log and as many under a whole notifyd, on a
# file system that loses everything that was not synced. It checks that nothing acknowledged
# is lost. It needs Linux, root and /dev/fuse. SEED repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."
export NOTIFY_REQUIRE_FUSE=1 POWERLOSS_SUMMARY=1
export POWERLOSS_TRIALS="${TRIALS:-10}" POWERLOSS_SEED="${SEED:-}"
bin="$(mktemp -d)"
trap 'rm -rf "$bin"' EXIT
go test -c -o "$bin/powerloss" ./tests/powerloss
cd tests/powerloss
status=0
"$bin/powerloss" -test.v -test.timeout 60m -test.run "${ONLY:-.}" >"$bin/log" 2>&1 || status=$?
grep -E '^ *(cut |broker |history |process |promised |lost:)|^--- |_test\.go:|duplicates of' "$bin/log" || true
tail -1 "$bin/log"
exit "$status"
