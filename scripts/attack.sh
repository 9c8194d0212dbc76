#!/usr/bin/env bash
# Make every try of the table of tests/attack against real servers, in a network of
# their own (root, or user namespaces). MUTANT breaks a mechanism first, ONLY="url token"
# makes some groups of tries.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./tests/attack ${MUTANT:+-mutant "$MUTANT"} ${ONLY:+-only "${ONLY// /,}"} "$@"
