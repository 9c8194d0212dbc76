#!/usr/bin/env bash
# Make every try of the table of tests/attack against real servers, in a network of
# their own (root, or user namespaces). ONLY="url token" makes some groups of tries.
# MUTANT=any-address breaks a mechanism first, and makes the tries of the group that
# must notice. MUTANT=all does so for one mutant after the other: it ends with one line
# of key=value pairs, and exits 1 when a mutant is not caught.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${MUTANT:-}" != all ]; then
	exec go run ./tests/attack ${MUTANT:+-mutant "$MUTANT"} ${ONLY:+-only "${ONLY// /,}"} "$@"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
go build -o "$work/attack" ./tests/attack
line=attack-mutants good=true
for m in $("$work/attack" -mutants); do
	echo "== $m"
	code=0 said=caught
	"$work/attack" -mutant "$m" || code=$?
	# Exit 1 is a try that got through; 2 proves nothing.
	[ $code = 1 ] || said=missed good=false
	line+=" $m=$said"
done
echo "$line ok=$good"
$good
