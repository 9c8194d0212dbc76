#!/usr/bin/env bash
# Restarts every process of an installation under load, one after the other, and checks that
# no message is lost, repeated or refused. It uses the servers of make engines and leaves them
# running. To use other servers, set NOTIFY_ENGINES_DIR and the ports of engines/versions.env.
# ROUNDS (1) is the number of restarts of each process. FROM=HEAD^ starts from another commit:
# the processes are upgraded, taken back and upgraded again. MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
export NODES=1
ONLY="kafka cassandra redis postgres" scripts/engines.sh start
exec go run ./tests/rolling -rounds "${ROUNDS:-1}" -kafka "127.0.0.1:$KAFKA_PORT" -cassandra "127.0.0.1:$CASSANDRA_PORT" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" ${FROM:+-from "$FROM"} ${MUTANT:+-mutant "$MUTANT"} "$@"
