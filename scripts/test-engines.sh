#!/usr/bin/env bash
# Runs the suites of every engine on the servers that make engines started. ONLY="kafka redis"
# picks engines. A skipped test is a failure; with -short, skipped tests are only listed.
# Further arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
eval "$(scripts/engines.sh env)"
export NOTIFY_REQUIRE_ENGINES=1
packages=()
if [ -z "${ONLY:-}" ]; then
	packages=(./pkg/engine/... ./pkg/log/...)
	[ ! -d tests/engines ] || packages+=(./tests/engines/...)
fi
for name in ${ONLY:-}; do
	case $name in
	kafka) packages+=(./pkg/log/...) ;;
	*) packages+=("./pkg/engine/$name/...") ;;
	esac
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
go test -count=1 -v "$@" "${packages[@]}" >"$log" 2>&1 || status=$?
if [ "$status" != 0 ]; then
	grep -Ev '^ *(=== (RUN|PAUSE|CONT|NAME)|--- PASS)' "$log" || true
	exit "$status"
fi
grep -E '^(ok|\?|metamorphic)' "$log" || true
# go test prints the reason of a skip in the line before it.
skips=$(awk '/--- SKIP/ { print reason; print } { reason = $0 }' "$log")
if [ -n "$skips" ]; then
	printf 'skipped:\n%s\n' "$skips"
	case " $* " in *" -short "*) ;; *) exit 1 ;; esac
fi
