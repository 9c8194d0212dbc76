#!/usr/bin/env bash
# Loads an installation of four processes from three agents under a load grant. Each agent has
# a network namespace of its own, so the script needs root and the program ip. It uses the
# servers of make engines, with its own keyspace, keys and database, and it starts an empty
# Kafka of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/lib.sh
export NODES=1
ONLY="cassandra redis postgres" scripts/engines.sh start
engine_own_kafka "${LOADFLEET_KAFKA_PORT:-19972}"
go run ./tests/loadfleet -kafka "$OWN_KAFKA" -cassandra "127.0.0.1:$CASSANDRA_PORT" -redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" "$@"
