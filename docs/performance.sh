#!/usr/bin/env bash
# Writes the table of bench/results.json into performance.md and that of bench/engines.json into
# performance-servers.md, between their marks. It needs jq, and the results of a full "make bench"
# or "make bench-engines". A table without results stays as it is. The figures of README.md are
# rows of performance.md: copy the new ones there.
set -euo pipefail
cd "$(dirname "$0")/.."
table=$(mktemp)
trap 'rm -f "$table"' EXIT
# put MARK FILE IDS PAGE: results of only some figures are refused, because they would remove the
# rows of the others.
put() {
	[ -s "$2" ] || return 0
	if [ "$(jq -r 'map(.id) | unique | join(" ")' "$2")" != "$3" ]; then
		echo "$2 is not of all figures ($3): the table stays" >&2
		return 0
	fi
	jq -r '
		def short: if . >= 1e6 then "\(. / 1e4 | round / 100)M" elif . >= 1e3 then "\(. / 10 | round / 100)K" else "\(. * 1000 | round / 1000)" end;
		"| | work | value | reference | ratio | need | |", "|---|---|---|---|---|---|---|",
		(.[] | [ .id, (.work | gsub("\\|"; "/")), "\(.value | short) \(.unit)",
			(if .reference == 0 then "" else (.reference | short) end), (if .ratio == 0 then "" else "\(.ratio)" end), .need,
			(if .pass == null then "" elif .pass then "ok" else "short" end) ] | "| \(join(" | ")) |")
	' "$2" >"$table"
	awk -v table="$table" -v mark="<!-- $1:" '
		index($0, mark) == 1 { print; print ""; while ((getline line <table) > 0) print line; print ""; inside = 1; next }
		/<!-- end -->/ { inside = 0 }
		!inside
	' "$4" >"$4.new"
	mv "$4.new" "$4"
}
put performance bench/results.json "P1 P2 P3 P4 P5 P6 P7 P8" docs/performance.md
put engines bench/engines.json P10 docs/performance-servers.md
