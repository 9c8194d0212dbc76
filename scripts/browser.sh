#!/usr/bin/env bash
# Tests the operator page with Chromium: sign-in, every page in both sizes and both colour
# schemes, a replay with the keyboard alone, and the checks of axe-core. CHROMIUM names
# another program. If Chromium is missing, the script tries to install it with apt-get.
set -euo pipefail
cd "$(dirname "$0")/../tests/browser"
if [ -z "${CHROMIUM:-}" ] && ! command -v chromium chromium-browser google-chrome >/dev/null; then
	echo 'installing chromium'
	{ apt-get update -q && apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 || echo 'chromium cannot be installed here' >&2
fi
go vet .
NOTIFY_REQUIRE_BROWSER=${NOTIFY_REQUIRE_BROWSER:-1} go test -count=1 -timeout 20m "$@" .
