#!/usr/bin/env bash
# A PostgreSQL server on loopback: postgres.sh start | stop | kill | status | promote |
# dsn. start is idempotent, waits until it answers and prints its DSN; kill is SIGKILL
# to every process of it; promote makes a primary of a standby.
#
#	NOTIFY_ENGINES_DIR    where data lies; default .engines in the repository
#	NOTIFY_POSTGRES_PORT  default 15432
#	POSTGRES_NAME         this server's folder; default postgres
#	POSTGRES_TLS=1        TLS only, and clients must show a certificate; those that
#	                      certs.sh makes lie in the folder's tls
#	POSTGRES_STANDBY_OF   name of the running server that this one streams from
#	POSTGRES_SYNC=1       with it: from now on that one answers a commit when this one
#	                      has it on disk as well
#
# The role notifyd needs no password, for the server holds test data; every other one does.
set -euo pipefail
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=${POSTGRES_NAME:-postgres}
port=$POSTGRES_PORT
dir=$ENGINES_DIR/$name data=$dir/data log=$dir/server.log
standby_of=${POSTGRES_STANDBY_OF:-}
tls=${POSTGRES_TLS:-}
user=notifyd

suffix="?sslmode=disable"
if [ "$tls" = 1 ]; then
	suffix="?sslmode=verify-full&sslrootcert=$dir/tls/ca.pem&sslcert=$dir/tls/client.pem&sslkey=$dir/tls/client.key"
fi
dsn="postgres://$user@127.0.0.1:$port/postgres$suffix"

# Debian keeps the programs of each version apart, outside the PATH.
find_bin() {
	for bin in "/usr/lib/postgresql/$POSTGRES_MAJOR/bin" "$(dirname "$(command -v initdb || true)")"; do
		[ ! -x "$bin/initdb" ] || return 0
	done
	return 1
}

# PostgreSQL refuses to run as root: then it runs as the user of the package.
as() {
	if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi
}
own() { [ "$(id -u)" != 0 ] || chown postgres: "$@"; }

sql() { PGCONNECT_TIMEOUT=5 psql -XAtq -v ON_ERROR_STOP=1 "${2:-$dsn}" -c "$1"; }

# The pid of the running server: the first line of its lock file, if it lives.
pid() {
	local p
	p=$(head -1 "$data/postmaster.pid" 2>/dev/null) && [ -n "$p" ] && [ "$(readlink "/proc/$p/cwd" 2>/dev/null)" = "$(readlink -f "$data")" ] && echo "$p"
}

init() {
	rm -rf "$data.new" && mkdir -m 700 "$data.new" && own "$data.new"
	as "$bin/initdb" -D "$data.new" -U $user -A trust -E UTF8 --locale=C.UTF-8 >>"$log" 2>&1 || engine_fail "postgres: initdb failed: see $log"
	{
		echo "listen_addresses = '127.0.0.1'"
		echo "unix_socket_directories = ''"
		echo "shared_buffers = 32MB"
		echo "max_connections = 200"
		if [ "$tls" = 1 ]; then
			echo "ssl = on"
			echo "ssl_cert_file = '$dir/server.pem'"
			echo "ssl_key_file = '$dir/server.key'"
			echo "ssl_ca_file = '$dir/ca.pem'"
		fi
	} | as tee -a "$data.new/postgresql.conf" >/dev/null
	local kind=host certificate=
	if [ "$tls" = 1 ]; then kind=hostssl certificate=clientcert=verify-ca; fi
	{
		echo "$kind all $user 127.0.0.1/32 trust $certificate"
		echo "$kind replication $user 127.0.0.1/32 trust $certificate"
		echo "$kind all all 127.0.0.1/32 scram-sha-256 $certificate"
	} | as tee "$data.new/pg_hba.conf" >/dev/null
	mv "$data.new" "$data" # whole or not at all
}

port_of() { sed -n 4p "$ENGINES_DIR/$1/data/postmaster.pid" 2>/dev/null; }

standby() {
	local from
	from=$(port_of "$standby_of")
	[ -n "$from" ] || engine_fail "postgres: $standby_of, whose standby this is, does not run"
	rm -rf "$data.new" && mkdir -m 700 "$data.new" && own "$data.new"
	as "$bin/pg_basebackup" -D "$data.new" -R -X stream -c fast -d "host=127.0.0.1 port=$from user=$user application_name=$name" >>"$log" 2>&1 ||
		engine_fail "postgres: pg_basebackup failed: see $log"
	mv "$data.new" "$data"
}

# synchronous makes the primary wait for this standby, once it streams.
synchronous() {
	local primary
	primary="postgres://$user@127.0.0.1:$(port_of "$standby_of")/postgres?sslmode=disable"
	until [ "$(sql "select count(*) from pg_stat_replication where application_name = '$name' and state = 'streaming'" "$primary")" = 1 ]; do
		pid >/dev/null || engine_fail "postgres: the standby ended: see $log"
		sleep 0.1
	done
	sql "alter system set synchronous_standby_names = '\"$name\"'" "$primary"
	sql "select pg_reload_conf()" "$primary" >/dev/null
	until [ "$(sql "select sync_state from pg_stat_replication where application_name = '$name'" "$primary")" = sync ]; do sleep 0.1; done
}

start() {
	local began
	began=$(engine_clock)
	find_bin || { engine_apt $POSTGRES_PACKAGES && find_bin; }
	mkdir -p "$dir"
	own "$dir"
	as test -x "$dir" || engine_fail "postgres: its user cannot enter $dir: set NOTIFY_ENGINES_DIR to a folder it can"
	as touch "$log"
	if ! pid >/dev/null; then
		engine_port_free postgres "$port"
		if [ "$tls" = 1 ]; then
			"$engines_root/scripts/engines/certs.sh" "$dir/tls"
			for f in server.pem server.key ca.pem; do install -m 600 "$dir/tls/$f" "$dir/$f" && own "$dir/$f"; done
		fi
		if [ ! -e "$data/PG_VERSION" ]; then
			if [ -n "$standby_of" ]; then standby; else init; fi
		fi
		rm -f "$data/postmaster.pid" # of one that was killed
		as "$bin/pg_ctl" -D "$data" -l "$log" -o "-p $port" -t 120 -w start >/dev/null || engine_fail "postgres does not start: see $log"
	fi
	sql "select 1" >/dev/null || engine_fail "postgres does not answer: see $log"
	if [ -n "$standby_of" ] && [ "${POSTGRES_SYNC:-}" = 1 ]; then synchronous; fi
	engine_ready postgres "$dsn" "$log" "$(engine_since "$began")"
}

stop() {
	pid >/dev/null || return 0
	find_bin && as "$bin/pg_ctl" -D "$data" -m fast -t 60 -w stop >/dev/null
}

kill_() {
	local p children
	p=$(pid) || return 0
	children=$(pgrep -P "$p" || true) # each is a session of its own
	# shellcheck disable=SC2086
	kill -9 "$p" $children 2>/dev/null || true
	while kill -0 "$p" 2>/dev/null; do sleep 0.02; done
}

status() {
	local p
	p=$(pid) || { echo 'postgres does not run'; exit 1; }
	echo "postgres runs: pid $p, $dsn, log $log"
}

case ${1:-} in
start | stop | status) "$1" ;;
kill) kill_ ;;
promote) find_bin && as "$bin/pg_ctl" -D "$data" -t 60 -w promote >/dev/null ;;
dsn) echo "$dsn" ;;
*)
	echo "usage: postgres.sh start | stop | kill | status | promote | dsn" >&2
	exit 2
	;;
esac
