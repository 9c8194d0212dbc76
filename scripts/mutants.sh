#!/usr/bin/env bash
# Prove that the proofs can fail: break one mechanism at a time and see that
# torture and powerloss notice, and that torture is content with what is whole.
# KILLS (6) is how often each process is killed. Ends with one line of key=value
# pairs; exit 1 when a mutant is not caught.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
go build -o "$work/torture" ./tests/torture

line=mutants
good=true
note() { line+=" $1=$2"; [ "$2" = "$3" ] || good=false; }

# torture exits 1 when a promise is broken; anything else but 0 proves nothing.
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
# Offsets are committed once a second: a kill at any other moment mostly finds
# what was committed too early done by then.
torture auto-commit caught -drain 60s -mutant auto-commit -at offsets-committed
torture no-claims caught -drain 60s -mutant no-claims
torture mark-first caught -drain 60s -mutant mark-first

# The mutant of powerloss is its own switch: a log that does not sync. Its tests
# pass when they notice the loss.
echo "== page-cache"
code=0
NOTIFY_REQUIRE_FUSE=1 go test -count=1 -run 'WithoutFsyncIsCaught$' ./tests/powerloss || code=$?
note page-cache "$([ $code = 0 ] && echo caught || echo missed)" caught

echo "$line ok=$good"
$good
