#!/usr/bin/env bash
# Makes every try of the table of tests/attack against real servers, in a network namespace
# (root, or user namespaces). ONLY="url token" picks groups of tries.
# MUTANT=any-address breaks a mechanism first, and makes the tries of the group that must
# notice. MUTANT=all does so for each mutant in turn. Its last line then has key=value
# pairs, and it exits 1 if a mutant is not caught.
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
	# Exit 1: a try got through. Exit 2: the tries could not be made, which proves nothing.
	[ $code = 1 ] || said=missed good=false
	line+=" $m=$said"
done
echo "$line ok=$good"
$good
