#!/usr/bin/env bash
# Installs and runs real servers on loopback ports, without Docker:
#   engines.sh install | start | stop | status | env
# ONLY="kafka redis" picks servers. NODES=3 starts three Kafka brokers and three Cassandra
# nodes; their data folders differ from those of a single node.
#
# install exits 75 if it cannot reach a registry. env prints the variables that the tests
# need, for eval.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/engines/lib.sh"

export NODES=${NODES:-1}
all="kafka cassandra redis postgres sqs"
only=${ONLY:-$all}
scripts=$engines_root/scripts/engines

picked() { [[ " $only " == *" $1 "* ]]; }

for name in $only; do
	[[ " $all " == *" $name "* ]] || engine_fail "no engine is called $name; there are: $all"
done

# install installs all packages with one command, then downloads the jars in parallel.
install() {
	local packages=() name pids=() status=0
	if picked kafka || picked cassandra || picked sqs; then
		# shellcheck disable=SC2206
		engine_find_java || packages+=($JAVA_PACKAGES)
		# shellcheck disable=SC2206
		command -v mvn >/dev/null || packages+=($MAVEN_PACKAGES)
	fi
	command -v openssl >/dev/null || packages+=(openssl)
	# shellcheck disable=SC2206
	! picked redis || packages+=($REDIS_PACKAGES)
	# shellcheck disable=SC2206
	! picked postgres || packages+=($POSTGRES_PACKAGES)
	if [ ${#packages[@]} -gt 0 ]; then engine_apt "${packages[@]}" || exit; fi
	for name in kafka cassandra sqs; do
		picked "$name" || continue
		[ "$name" != sqs ] || name=elasticmq
		(engine_maven "$name") &
		pids+=($!)
	done
	# Any other failure takes precedence over 75, so that it is not taken for an unreachable
	# registry.
	local ended
	for name in "${pids[@]}"; do
		ended=0
		wait "$name" || ended=$?
		case $status in 0 | 75) [ "$ended" = 0 ] || status=$ended ;; esac
	done
	exit "$status"
}

# each COMMAND runs the command for every engine in parallel. It returns the last status that
# is not 0, or 0.
each() {
	local name pids=() status=0
	for name in $only; do
		one "$1" "$name" &
		pids+=($!)
	done
	for name in "${pids[@]}"; do wait "$name" || status=$?; done
	return "$status"
}

# one COMMAND NAME runs the command of one engine's script. After a start it prints how long
# the server took to become ready, unless the script has printed that.
one() {
	local began out status=0
	began=$(engine_clock)
	# A node of a cluster of three remembers the other two, so a cluster of three has data
	# folders of its own. A stop ends both installations.
	if [ "$2" = cassandra ]; then
		if [ "$1" = stop ]; then
			CASSANDRA_DIR=$ENGINES_DIR/cassandra3 "$scripts/$2.sh" stop || status=$?
			"$scripts/$2.sh" stop || status=$?
			return "$status"
		fi
		[ "$NODES" = 1 ] || export CASSANDRA_DIR=$ENGINES_DIR/cassandra3
	fi
	# notifyd keeps its callers in Cassandra and in PostgreSQL, so each installation of
	# Cassandra has its own data folder of PostgreSQL.
	if [ "$2" = postgres ] && { [ "$NODES" != 1 ] || [ -d "$ENGINES_DIR/postgres3" ]; }; then
		local mine=postgres other=postgres3
		[ "$NODES" = 1 ] || mine=postgres3 other=postgres
		[ "$1" = status ] || POSTGRES_NAME=$other "$scripts/$2.sh" stop >/dev/null || status=$?
		export POSTGRES_NAME=$mine
	fi
	if [ "$1" != start ]; then
		"$scripts/$2.sh" "$1"
		return
	fi
	if ! out=$("$scripts/$2.sh" start); then
		printf '%s\n' ${out:+"$out"} >&2
		engine_fail "$2 is not ready"
		return
	fi
	case $out in
	*'ready in'*) printf '%s\n' "$out" ;;
	*) printf '%-10s ready in %5.1f s   %s\n' "$2" "$(engine_since "$began")" "${out##*$'\n'}" ;;
	esac
}

start() {
	local began
	began=$(engine_clock)
	# Without "|| return", so that set -e ends the script with the status of install.
	(install)
	if engine_find_java; then PATH=$(dirname "$JAVA"):$PATH; fi
	each start || engine_fail "not all servers are ready; make engines-stop stops those that run"
	printf 'engines nodes=%s ready="%s" seconds=%s data=%s\n' "$NODES" "$only" "$(engine_since "$began")" "$ENGINES_DIR"
}

stop() { each stop; }
status() { each status; }

env_() {
	! picked kafka || echo "export NOTIFY_TEST_KAFKA=127.0.0.1:$KAFKA_PORT"
	! picked cassandra || echo "export NOTIFY_TEST_CASSANDRA=127.0.0.1:$CASSANDRA_PORT"
	! picked redis || echo "export NOTIFY_TEST_REDIS=127.0.0.1:$REDIS_PORT"
	! picked postgres || echo "export NOTIFY_TEST_POSTGRES='postgres://notifyd@127.0.0.1:$POSTGRES_PORT/postgres?sslmode=disable'"
	! picked sqs || echo "export NOTIFY_TEST_SQS=http://127.0.0.1:$SQS_PORT"
}

case ${1:-} in
install | start | stop | status) "$1" ;;
env) env_ ;;
*)
	echo "usage: engines.sh install | start | stop | status | env" >&2
	exit 2
	;;
esac
