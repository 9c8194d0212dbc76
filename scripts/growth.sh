#!/usr/bin/env bash
# Raises the number of timer shards and of partitions of an installation of three processes
# under load. It checks that no message is lost, early, repeated, refused or held for more
# than two seconds. It uses the servers of make engines, with its own keyspace, keys and
# database, and it starts an empty Kafka of its own.
# FROM (16) and TO (256) are the numbers of shards. MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/lib.sh
export NODES=1
ONLY="cassandra redis postgres" scripts/engines.sh start
engine_own_kafka "${GROWTH_KAFKA_PORT:-19892}"
go run ./tests/growth -from "${FROM:-16}" -to "${TO:-256}" -kafka "$OWN_KAFKA" -cassandra "127.0.0.1:$CASSANDRA_PORT" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" ${MUTANT:+-mutant "$MUTANT"} "$@"
