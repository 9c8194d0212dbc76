#!/usr/bin/env bash
# Load an installation of four processes from three machines by consent: network namespaces
# of their own, so it needs root and the program ip. It uses the servers of make engines,
# with a keyspace, keys and a database of its own, and an empty Kafka of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/lib.sh
export NODES=1
ONLY="cassandra redis postgres" scripts/engines.sh start
engine_own_kafka "${LOADFLEET_KAFKA_PORT:-19972}"
go run ./tests/loadfleet -kafka "$OWN_KAFKA" -cassandra "127.0.0.1:$CASSANDRA_PORT" -redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" "$@"
