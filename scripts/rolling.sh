#!/usr/bin/env bash
# Restart every process of an installation, one after the other, while it is under
# load: nothing is lost, repeated or refused. It uses the servers of make engines,
# which go on; NOTIFY_ENGINES_DIR and the ports of engines/versions.env give it others.
# ROUNDS (1) says how often. FROM=HEAD^ has them of another commit first: they are upgraded,
# taken back and upgraded again. MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
export NODES=1
ONLY="kafka cassandra redis postgres" scripts/engines.sh start
exec go run ./tests/rolling -rounds "${ROUNDS:-1}" -kafka "127.0.0.1:$KAFKA_PORT" -cassandra "127.0.0.1:$CASSANDRA_PORT" \
	-redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" ${FROM:+-from "$FROM"} ${MUTANT:+-mutant "$MUTANT"} "$@"
