#!/usr/bin/env bash
# Runs the load scenarios, each with a notifyd of its own. SHORT=1 runs their short form, to
# see that they work, not to measure. ONLY="a b" picks scenarios. Without SHORT and ONLY the
# scenario soak is left out, because it takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
CGO_ENABLED=0 go build -o "$out/" ./cmd/notifyctl ./cmd/notifyd
failed=()
for file in scenarios/*.yaml; do
	name=$(basename "$file" .yaml)
	[[ -n "${ONLY:-}" && " $ONLY " != *" $name "* ]] && continue
	[[ -z "${SHORT:-}" && -z "${ONLY:-}" && "$name" == soak ]] && continue
	mode=()
	grep -q 'mode:' "$file" || mode=(--mode pipeline)
	began=$SECONDS code=0
	"$out/notifyctl" load run "$file" ${SHORT:+--short} "${mode[@]}" -q >"$out/$name.txt" 2>&1 || code=$?
	printf '%-22s exit %-3s %3d s  %s\n' "$name" "$code" $((SECONDS - began)) "$(sed -n 's/^ledger *//p' "$out/$name.txt")"
	if [[ $code -ne 0 || -z "${SHORT:-}" ]]; then
		cat "$out/$name.txt"
	fi
	[[ $code -eq 0 ]] || failed+=("$name")
done
if [[ ${#failed[@]} -gt 0 ]]; then
	echo "failed: ${failed[*]}"
	exit 1
fi
