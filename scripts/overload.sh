#!/usr/bin/env bash
# Give notifyd several times the fan-outs that it can take, and show what becomes of them and
# of single requests beside them. On the embedded engines by default. SERVERS=1: on the
# Cassandra, Redis and PostgreSQL of make engines, which must run, with a keyspace, keys and
# a database of its own, and a Kafka that it starts in a temporary folder; NOTIFY_ENGINES_LIB
# says where the jars are. SHORT=1: 10 s of overload, the figures are not judged. MUTANT
# breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
args=()
if [ -n "${SHORT:-}" ]; then args+=(-short); fi
if [ -n "${MUTANT:-}" ]; then args+=(-mutant "$MUTANT"); fi
if [ -n "${SERVERS:-}" ]; then
	source scripts/engines/versions.env
	export NOTIFY_KAFKA_PORT=${OVERLOAD_KAFKA_PORT:-19952} NODES=1
	unset KAFKA_PORT KAFKA_CONTROLLER_PORT
	export NOTIFY_ENGINES_LIB=${NOTIFY_ENGINES_LIB:-$PWD/.engines/lib}
	dir=$(mktemp -d)
	export NOTIFY_ENGINES_DIR=$dir
	end() {
		scripts/engines/kafka.sh stop >/dev/null || true
		rm -rf "$dir"
	}
	trap end EXIT
	scripts/engines/kafka.sh start
	args+=(-servers -kafka "127.0.0.1:$NOTIFY_KAFKA_PORT" -cassandra "127.0.0.1:$CASSANDRA_PORT" -redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT")
fi
# Built first: nice is for the process of the load, which is this program once more.
mkdir -p bin
go build -o bin/overload ./tests/overload
bin/overload "${args[@]}" "$@"
