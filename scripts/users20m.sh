#!/usr/bin/env bash
# Shows that a worker's memory grows with its share of the users: 4 workers, 20 million users
# in a database of its own. It uses the servers of make engines. USERS sets the number of
# users.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
export NODES=1
ONLY="kafka postgres" scripts/engines.sh start
exec go run ./tests/users20m ${USERS:+-users "$USERS"} -kafka "127.0.0.1:$KAFKA_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" "$@"
