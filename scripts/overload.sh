#!/usr/bin/env bash
# Sends notifyd several times the fan-outs that it can accept, and measures their rate and the
# latency of single requests beside them. It runs on the embedded engines. SERVERS=1: on the
# servers of make engines, with its own keyspace, keys and database, and an empty Kafka of
# its own. SHORT=1: 10 s of overload, the figures are not judged. MUTANT breaks a mechanism
# first.
set -euo pipefail
cd "$(dirname "$0")/.."
args=()
if [ -n "${SHORT:-}" ]; then args+=(-short); fi
if [ -n "${MUTANT:-}" ]; then args+=(-mutant "$MUTANT"); fi
if [ -n "${SERVERS:-}" ]; then
	source scripts/engines/lib.sh
	export NODES=1
	ONLY="cassandra redis postgres" scripts/engines.sh start
	engine_own_kafka "${OVERLOAD_KAFKA_PORT:-19952}"
	args+=(-servers -kafka "$OWN_KAFKA" -cassandra "127.0.0.1:$CASSANDRA_PORT" -redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT")
fi
# Built first, not run by go run: the program starts its own binary again, under nice, to send
# the bulk load.
mkdir -p bin
go build -o bin/overload ./tests/overload
bin/overload "${args[@]}" "$@"
