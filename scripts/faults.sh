#!/usr/bin/env bash
# Break real servers and processes of notifyd under load, one fault after the other,
# and check what was promised. It uses the servers of make engines, kills some of
# them, and empties Redis; they run again when it is over, and make engines-stop stops
# them. NOTIFY_ENGINES_DIR and the ports of engines/versions.env give it others.
# SHORT=1: servers are away for 10 s instead of 30. ONLY="kafka redis" picks some.
# MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
short=()
if [ -n "${SHORT:-}" ]; then short=(-down 10s); fi
export NODES=1
ONLY="kafka cassandra redis postgres" scripts/engines.sh start
exec go run ./tests/enginefaults -only "${ONLY:-}" -kafka "127.0.0.1:$KAFKA_PORT" -cassandra "127.0.0.1:$CASSANDRA_PORT" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" "${short[@]}" ${MUTANT:+-mutant "$MUTANT"} "$@"
