#!/usr/bin/env bash
# The suites of every engine on the servers that make engines started; ONLY="kafka
# redis" picks some. A skip is a failure. Further arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
eval "$(scripts/engines.sh env)"
export NOTIFY_REQUIRE_ENGINES=1
packages=()
if [ -z "${ONLY:-}" ]; then
	packages=(./pkg/engine/... ./pkg/stream/...)
	[ ! -d tests/engines ] || packages+=(./tests/engines/...)
fi
for name in ${ONLY:-}; do
	case $name in
	kafka) packages+=(./pkg/stream/...) ;;
	*) packages+=("./pkg/engine/$name/...") ;;
	esac
done
go test -count=1 "$@" "${packages[@]}"
