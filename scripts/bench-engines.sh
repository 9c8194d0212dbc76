#!/usr/bin/env bash
# Measures P10 of docs/performance-servers.md on the servers of make engines: it compares notifyd's
# use of each server with the server's own tool or the bare driver. ONLY="kafka redis" picks
# servers, SHORT=1 runs the short form. Results go to bench/engines.json. ONLY=chain measures
# P11 on all four servers instead: the whole chain, compared with the same requests by the
# bare clients.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/lib.sh
engine_java
args=(-java "$JAVA" -jars "$ENGINES_LIB/kafka/*" -out bench/engines.json)
only=${ONLY:-kafka cassandra redis postgres}
[ "$only" != chain ] || only="kafka cassandra redis postgres" args=(-chain -out bench/chain.json)
for name in $only; do
	case $name in
	kafka | cassandra | redis) port=${name^^}_PORT at=127.0.0.1:${!port} ;;
	postgres) port=POSTGRES_PORT at="postgres://notifyd@127.0.0.1:$POSTGRES_PORT/postgres?sslmode=disable" ;;
	*) engine_fail "ONLY: no measurement is called $name; use kafka, cassandra, redis, postgres or chain" ;;
	esac
	engine_listening 127.0.0.1 "${!port}" || engine_fail "$name does not listen on 127.0.0.1:${!port}: run make engines"
	args+=(-engine "$name=$at")
done
exec go run ./tests/bench "${args[@]}" ${SHORT:+-short} "$@"
