#!/usr/bin/env bash
# Compares the rates of 1, 2 and 4 workers or dispatchers under the same load over real
# servers. Each process is limited to a share of a core (Linux, root). It uses the servers of
# make engines except Kafka: it starts an empty broker of its own. It removes the broker, its
# keyspace and its database at the end. SHORT=1: a tenth of the messages, the ratios are not
# judged. NODES=3: three brokers and three nodes of Cassandra. ONLY="singles" picks loads of
# singles, fanouts and triggers.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/lib.sh
export NODES=${NODES:-1}
ONLY="cassandra redis postgres" scripts/engines.sh start
cassandra=$(CASSANDRA_DIR=$ENGINES_DIR/cassandra$([ "$NODES" = 1 ] || echo 3) scripts/engines/cassandra.sh addresses)
engine_own_kafka "${SCALEOUT_KAFKA_PORT:-19052}"
short=()
if [ -n "${SHORT:-}" ]; then short=(-short); fi
go run ./tests/scaleout -only "${ONLY:-}" -nodes "$NODES" -kafka "$OWN_KAFKA" -cassandra "$cassandra" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" "${short[@]}" "$@"
