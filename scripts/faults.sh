#!/usr/bin/env bash
# Breaks real servers and processes of notifyd under load, one fault after the other, and
# checks the promises. The faults paused, cut and cut-log run a worker in a network namespace
# (Linux; root or user namespaces). It uses the servers of make engines, kills some of them,
# and empties Redis. It starts them again at the end; make engines-stop stops them. To use
# other servers, set NOTIFY_ENGINES_DIR and the ports of engines/versions.env.
# SHORT=1: servers are away for 10 s instead of 30. ONLY="kafka redis" picks faults.
# NODES=3: three brokers and three nodes of Cassandra. One of each is killed for good; the
# faults are broker and node.
# MUTANT breaks a mechanism first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/engines/versions.env
short=()
if [ -n "${SHORT:-}" ]; then short=(-down 10s); fi
export NODES=${NODES:-1}
ONLY="kafka cassandra redis postgres" scripts/engines.sh start
# The same names as in engines.sh: a cluster of three has folders of its own, and a PostgreSQL
# of its own.
if [ "$NODES" = 3 ]; then export CASSANDRA_DIR=${NOTIFY_ENGINES_DIR:-$PWD/.engines}/cassandra3 POSTGRES_NAME=postgres3; fi
exec go run ./tests/servers -only "${ONLY:-}" -nodes "$NODES" -kafka "$(scripts/engines/kafka.sh addresses)" \
	-cassandra "$(scripts/engines/cassandra.sh addresses)" -redis "127.0.0.1:$REDIS_PORT" -postgres "127.0.0.1:$POSTGRES_PORT" \
	"${short[@]}" ${MUTANT:+-mutant "$MUTANT"} "$@"
