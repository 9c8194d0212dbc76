#!/usr/bin/env bash
# Raise the numbers of timer shards and of partitions of an installation of three processes
# while it is under load: nothing is lost, early, repeated, refused or held over two seconds.
# It uses the Cassandra, Redis and
# PostgreSQL of make engines, which must run, with a keyspace, keys and a database of its
# own, and starts a Kafka of its own in a temporary folder, whose topics go with it.
# NOTIFY_ENGINES_LIB says where the jars are.
# FROM (16) and TO (256) are the numbers of shards. MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
# Those of the other servers are on the ports of versions.env; this Kafka is beside them.
export NOTIFY_KAFKA_PORT=${GROWTH_KAFKA_PORT:-19892} NODES=1
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
go run ./tests/growth -from "${FROM:-16}" -to "${TO:-256}" -kafka "127.0.0.1:$NOTIFY_KAFKA_PORT" -cassandra "127.0.0.1:$CASSANDRA_PORT" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" ${MUTANT:+-mutant "$MUTANT"} "$@"
