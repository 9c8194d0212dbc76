#!/usr/bin/env bash
# Proves that the proofs can fail: breaks one mechanism at a time and checks that torture and
# powerloss notice. It also checks that torture passes when nothing is broken. KILLS (6) is
# the number of kills for each mutant. Its last line has key=value pairs. It exits 1 if a
# mutant is not caught.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
go build -o "$work/torture" ./tests/torture

line=mutants
good=true
note() { line+=" $1=$2"; [ "$2" = "$3" ] || good=false; }

# torture exits 1 if a promise is broken, and 0 if all are kept. Any other status proves
# nothing.
torture() {
	local name=$1 want=$2 code=0 said
	shift 2
	echo "== $name"
	"$work/torture" -kills "${KILLS:-6}" ${SEED:+-seed "$SEED"} "$@" || code=$?
	case $want/$code in
	caught/1 | content/0) said=$want ;;
	caught/0) said=missed ;;
	content/1) said=broken ;;
	*) said=failed ;;
	esac
	note "$name" "$said" "$want"
}

torture whole content
# Kill right after a commit of offsets, which comes once a second. At other moments the
# records that were committed too early have mostly been processed, and nothing is lost.
torture auto-commit caught -drain 60s -mutant auto-commit -at offsets-committed
torture no-claims caught -drain 60s -mutant no-claims
torture mark-first caught -drain 60s -mutant mark-first

# The mutant of powerloss is a setting, a log that does not fsync. Its tests pass if they
# notice the loss.
echo "== page-cache"
code=0
NOTIFY_REQUIRE_FUSE=1 go test -count=1 -run 'WithoutFsyncIsCaught$' ./tests/powerloss || code=$?
note page-cache "$([ $code = 0 ] && echo caught || echo missed)" caught

echo "$line ok=$good"
$good
