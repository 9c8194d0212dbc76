#!/usr/bin/env bash
# Redis: redis.sh start | stop | status | addresses.
#
# REDIS_MODE says which: single (the default), sentinel (a server, a replica and
# three sentinels, which know it by the name notifyd; addresses are theirs), or
# cluster (three nodes). Each has a folder and ports of its own: single is at
# NOTIFY_REDIS_PORT (16379), sentinel at +10, +11 and +20 to +22, cluster at +30 to
# +32.
# REDIS_FSYNC is appendfsync: always (the default: the spill buffer may answer),
# everysec or no.
# REDIS_SECURE=1: TLS only, a client certificate and a password are asked for;
# DIR/certs (certs.sh) and DIR/certs/redis.password. Of single alone, at +1.
# NOTIFY_ENGINES_DIR and NOTIFY_REDIS_PORT move it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mode=${REDIS_MODE:-single}
fsync=${REDIS_FSYNC:-always}
secure=${REDIS_SECURE:-}
case $mode in
single)
	base=$ENGINES_DIR/redis
	[ -z "$secure" ] || base=$ENGINES_DIR/redis-secure REDIS_PORT=$((REDIS_PORT + 1))
	nodes="$REDIS_PORT" sentinels=
	;;
sentinel)
	base=$ENGINES_DIR/redis-sentinel
	nodes="$((REDIS_PORT + 10)) $((REDIS_PORT + 11))"
	sentinels="$((REDIS_PORT + 20)) $((REDIS_PORT + 21)) $((REDIS_PORT + 22))"
	;;
cluster)
	base=$ENGINES_DIR/redis-cluster
	nodes="$((REDIS_PORT + 30)) $((REDIS_PORT + 31)) $((REDIS_PORT + 32))" sentinels=
	;;
*) engine_fail "REDIS_MODE is $mode; it is single, sentinel or cluster" ;;
esac
case $fsync in
always | everysec | no) ;;
*) engine_fail "REDIS_FSYNC is $fsync; it is always, everysec or no" ;;
esac
[ -z "$secure" ] || [ "$mode" = single ] || engine_fail "REDIS_SECURE goes with REDIS_MODE=single"
first=${nodes%% *}
certs=$base/certs

folder() { [ "$mode" = single ] && echo "$base" || echo "$base/$1"; }

cli() {
	local port=$1
	shift
	if [ -n "$secure" ]; then
		REDISCLI_AUTH=$(cat "$certs/redis.password") timeout 5 redis-cli -h 127.0.0.1 -p "$port" \
			--tls --cacert "$certs/ca.pem" --cert "$certs/client.pem" --key "$certs/client.key" "$@"
	else
		timeout 5 redis-cli -h 127.0.0.1 -p "$port" "$@"
	fi
}

answers() { [ "$(cli "$1" ping)" = PONG ]; }

# configure PORT writes what one server is told; passwords go nowhere else.
configure() {
	local port=$1 dir
	dir=$(folder "$port")
	if [ -n "$secure" ]; then
		cat <<-END
			port 0
			tls-port $port
			tls-cert-file $certs/server.pem
			tls-key-file $certs/server.key
			tls-ca-cert-file $certs/ca.pem
			tls-auth-clients yes
			requirepass $(cat "$certs/redis.password")
		END
	else
		echo "port $port"
	fi
	cat <<-END
		bind 127.0.0.1
		dir $dir/data
		save ""
		appendonly yes
		appendfsync $fsync
		no-appendfsync-on-rewrite no
		maxmemory-policy noeviction
	END
	case $mode in
	cluster) printf '%s\n' 'cluster-enabled yes' "cluster-port $((port + 10000))" 'cluster-node-timeout 2000' ;;
	sentinel) [ "$port" = "$first" ] || [ -e "$dir/data/appendonlydir" ] || echo "replicaof 127.0.0.1 $first" ;;
	esac
}

start_server() {
	local port=$1 dir began
	dir=$(folder "$port") began=$(engine_clock)
	if ! engine_running "$dir"; then
		engine_port_free redis "$port" || return
		mkdir -p "$dir/data"
		# Sentinels rewrite the file; what they made of it stays.
		[ "$mode" = sentinel ] && [ -e "$dir/redis.conf" ] || (umask 077 && configure "$port" >"$dir/redis.conf")
		engine_start redis "$dir" redis-server "$dir/redis.conf" || return
	fi
	engine_wait redis "$dir" 60 answers "$port" || return
	engine_ready redis "127.0.0.1:$port" "$dir/server.log" "$(engine_since "$began")"
}

start_sentinel() {
	local port=$1 dir began
	dir=$(folder "$port") began=$(engine_clock)
	if ! engine_running "$dir"; then
		engine_port_free redis-sentinel "$port" || return
		mkdir -p "$dir"
		[ -e "$dir/sentinel.conf" ] || cat >"$dir/sentinel.conf" <<-END
			port $port
			bind 127.0.0.1
			dir $dir
			sentinel monitor notifyd 127.0.0.1 $first 2
			sentinel down-after-milliseconds notifyd 1000
			sentinel failover-timeout notifyd 5000
		END
		engine_start redis-sentinel "$dir" redis-server "$dir/sentinel.conf" --sentinel || return
	fi
	engine_wait redis-sentinel "$dir" 60 answers "$port" || return
	engine_ready sentinel "127.0.0.1:$port" "$dir/server.log" "$(engine_since "$began")"
}

# join makes a cluster of the nodes, once.
join() {
	local port list=()
	for port in $nodes; do list+=("127.0.0.1:$port"); done
	cli "$first" cluster info | grep -q 'cluster_state:ok' && return
	if cli "$first" cluster info | grep -q 'cluster_slots_assigned:0'; then
		redis-cli --cluster create "${list[@]}" --cluster-replicas 0 --cluster-yes >"$base/create.log" 2>&1 ||
			engine_fail "the cluster cannot be made, see $base/create.log" || return
	fi
	for port in $nodes; do engine_wait redis "$(folder "$port")" 60 ok_cluster "$port" || return; done
}
ok_cluster() { cli "$1" cluster info | grep -q 'cluster_state:ok'; }

start() {
	local port version
	# shellcheck disable=SC2086
	engine_need redis-server $REDIS_PACKAGES
	version=$(redis-server --version | sed 's/.* v=\([0-9]*\).*/\1/')
	[ "$version" -ge "$REDIS_MAJOR" ] || engine_fail "redis-server is of version $version, $REDIS_MAJOR is needed"
	mkdir -p "$base"
	if [ -n "$secure" ]; then
		"$engines_root/scripts/engines/certs.sh" "$certs"
		[ -s "$certs/redis.password" ] || (umask 077 && openssl rand -hex 16 >"$certs/redis.password")
	fi
	for port in $nodes; do start_server "$port"; done
	for port in $sentinels; do start_sentinel "$port"; done
	[ "$mode" != cluster ] || join
}

stop() {
	local dir
	# All kinds: whoever stops need not know how it was started. Sentinels first, or
	# they would make the replica the master.
	for dir in "$ENGINES_DIR"/redis-sentinel/* "$ENGINES_DIR"/redis "$ENGINES_DIR"/redis-secure "$ENGINES_DIR"/redis-cluster/*; do
		if [ -e "$dir/sentinel.conf" ]; then engine_stop sentinel "$dir" 10; fi
	done
	for dir in "$ENGINES_DIR"/redis "$ENGINES_DIR"/redis-secure "$ENGINES_DIR"/redis-sentinel/* "$ENGINES_DIR"/redis-cluster/*; do
		[ ! -e "$dir/pid" ] || engine_stop redis "$dir" 10 &
	done
	wait
}

status() {
	local port dir down=
	for port in $nodes $sentinels; do
		dir=$(folder "$port")
		if engine_running "$dir"; then
			echo "redis runs, pid $(engine_pid "$dir"), 127.0.0.1:$port, log $dir/server.log"
		else
			echo "redis does not run at 127.0.0.1:$port"
			down=1
		fi
	done
	[ -z "$down" ] || return 3
}

addresses() {
	local port list=
	for port in ${sentinels:-$nodes}; do list+=${list:+,}127.0.0.1:$port; done
	echo "$list"
}

case ${1:-} in
start | stop | status | addresses) "$1" ;;
*)
	echo "usage: redis.sh start | stop | status | addresses" >&2
	exit 2
	;;
esac
