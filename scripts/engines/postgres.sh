#!/usr/bin/env bash
# One PostgreSQL server on loopback for tests and demonstrations.
#
#   postgres.sh start|stop|kill|status|promote|dsn
#
# start waits until it answers and prints its DSN and the path of its log; again
# is the same as once. kill is SIGKILL to every process of it, as a loss of power
# of a machine is to its clients. By environment:
#
#   NOTIFY_ENGINES_DIR   where data lies; default .engines in the repository
#   POSTGRES_NAME        folder of this server below it; default postgres
#   POSTGRES_PORT        default 15432
#   POSTGRES_TLS=1       TLS only, and clients show a certificate: ca.crt,
#                        client.crt and client.key lie in the folder's tls
#   POSTGRES_STANDBY_OF  name of the server that this one streams from; it must
#                        run. promote makes a primary of it.
#   POSTGRES_SYNC=1      with POSTGRES_STANDBY_OF: from now on that server answers
#                        a commit when this one has it on disk, too
set -euo pipefail
cd "$(dirname "$0")/../.."

root=${NOTIFY_ENGINES_DIR:-$PWD/.engines}
name=${POSTGRES_NAME:-postgres}
port=${POSTGRES_PORT:-15432}
dir=$root/$name data=$root/$name/data log=$root/$name/postgres.log
user=notifyd password=notifyd # of a server on loopback that holds test data

fail() { echo "postgres: $*" >&2; exit 1; }

# Debian keeps the programs of each version apart, outside the PATH.
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1) || true
if [ -z "$bin" ] || [ ! -x "$bin/initdb" ]; then
  bin=$(dirname "$(command -v initdb || true)")
fi

# PostgreSQL refuses to run as root: then it runs as the user of the package.
as() {
  if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi
}
sql() { # port, statement
  PGPASSWORD=$password PGCONNECT_TIMEOUT=5 psql -XAtq -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$1" -U $user -d postgres -c "$2"
}
if [ "${POSTGRES_TLS:-}" = 1 ]; then
  export PGSSLMODE=verify-full PGSSLROOTCERT=$dir/tls/ca.crt PGSSLCERT=$dir/tls/client.crt PGSSLKEY=$dir/tls/client.key
  suffix="?sslmode=verify-full&sslrootcert=$dir/tls/ca.crt&sslcert=$dir/tls/client.crt&sslkey=$dir/tls/client.key"
else
  export PGSSLMODE=disable
  suffix="?sslmode=disable"
fi
dsn="postgres://$user:$password@127.0.0.1:$port/postgres$suffix"

# The pid of the running server: the first line of its lock file, if it lives.
pid() {
  local p
  p=$(head -1 "$data/postmaster.pid" 2>/dev/null) && [ -n "$p" ] && kill -0 "$p" 2>/dev/null && echo "$p"
}

certificates() {
  [ -e "$dir/tls/client.crt" ] && return
  rm -rf "$dir/tls" && mkdir -p "$dir/tls"
  (
    cd "$dir/tls"
    exec 2>>openssl.log
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=notifyd test CA" -keyout ca.key -out ca.crt
    for one in server client; do
      subject=/CN=$user
      [ $one = client ] || subject=/CN=127.0.0.1
      openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$subject" -keyout $one.key -out $one.csr
      openssl x509 -req -in $one.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out $one.tmp \
        -extfile <(echo "subjectAltName=IP:127.0.0.1,DNS:localhost")
      mv $one.tmp $one.crt
    done
    chmod 600 ./*.key
  )
  # The server reads its key as its own; the client's stays with who runs this.
  install -m 600 "$dir/tls/server.key" "$dir/server.key"
  if [ "$(id -u)" = 0 ]; then chown postgres: "$dir/server.key"; fi
}

init() {
  local pw=$dir/pw
  (umask 077 && echo $password >"$pw")
  if [ "$(id -u)" = 0 ]; then chown postgres: "$pw"; fi
  rm -rf "$data.new" && mkdir "$data.new"
  if [ "$(id -u)" = 0 ]; then chown postgres: "$data.new"; fi
  as "$bin/initdb" -D "$data.new" -U $user -A scram-sha-256 --pwfile "$pw" -E UTF8 --locale=C.UTF-8 >>"$log" 2>&1 ||
    fail "initdb failed, see $log"
  rm "$pw"
  {
    echo "listen_addresses = '127.0.0.1'"
    echo "unix_socket_directories = ''"
    echo "shared_buffers = 32MB"
    echo "max_connections = 200"
    echo "wal_sender_timeout = 10s"
    if [ "${POSTGRES_TLS:-}" = 1 ]; then
      echo "ssl = on"
      echo "ssl_cert_file = '$dir/tls/server.crt'"
      echo "ssl_key_file = '$dir/server.key'"
      echo "ssl_ca_file = '$dir/tls/ca.crt'"
    fi
  } | as tee -a "$data.new/postgresql.conf" >/dev/null
  if [ "${POSTGRES_TLS:-}" = 1 ]; then
    echo "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca" | as tee "$data.new/pg_hba.conf" >/dev/null
  fi
  mv "$data.new" "$data" # whole or not at all
}

standby() {
  local of=$1 from
  from=$(head -4 "$root/$of/data/postmaster.pid" 2>/dev/null | tail -1) || true
  [ -n "$from" ] || fail "$of, whose standby this is, does not run"
  rm -rf "$data.new" && mkdir "$data.new"
  if [ "$(id -u)" = 0 ]; then chown postgres: "$data.new"; fi
  PGPASSWORD=$password as "$bin/pg_basebackup" -D "$data.new" -R -X stream -c fast \
    -d "host=127.0.0.1 port=$from user=$user password=$password application_name=$name" >>"$log" 2>&1 ||
    fail "pg_basebackup failed, see $log"
  chmod 700 "$data.new"
  mv "$data.new" "$data"
}

start() {
  [ -x "$bin/initdb" ] || fail "PostgreSQL is not installed. On Debian: apt-get install postgresql (its own cluster need not run: echo 'exit 101' > /usr/sbin/policy-rc.d first, or create_main_cluster = false in /etc/postgresql-common/createcluster.conf)"
  command -v psql >/dev/null || fail "psql is not installed. On Debian: apt-get install postgresql-client"
  mkdir -p "$dir"
  if [ "$(id -u)" = 0 ]; then
    id postgres >/dev/null 2>&1 || fail "there is no user postgres to run as; the package makes it"
    chown postgres: "$dir"
    as test -x "$dir" || fail "the user postgres cannot enter $dir: set NOTIFY_ENGINES_DIR to a folder it can"
  fi
  as touch "$log"
  if [ "${POSTGRES_TLS:-}" = 1 ]; then certificates; fi
  if ! pid >/dev/null; then
    if [ ! -e "$data/PG_VERSION" ]; then
      if [ -n "${POSTGRES_STANDBY_OF:-}" ]; then standby "$POSTGRES_STANDBY_OF"; else init; fi
    fi
    rm -f "$data/postmaster.pid" # of one that was killed: nobody lives by it
    as "$bin/pg_ctl" -D "$data" -l "$log" -o "-p $port" -t 120 -w start >/dev/null || fail "it does not start, see $log"
  fi
  for _ in $(seq 600); do
    if sql "$port" "select 1" >/dev/null 2>&1; then break; fi
    sleep 0.1
  done
  sql "$port" "select 1" >/dev/null || fail "it does not answer, see $log"
  if [ -n "${POSTGRES_STANDBY_OF:-}" ] && [ "${POSTGRES_SYNC:-}" = 1 ]; then synchronous "$POSTGRES_STANDBY_OF"; fi
  echo "postgres $dsn log $log"
}

# synchronous makes the primary wait for this standby, once it streams.
synchronous() {
  local from
  from=$(head -4 "$root/$1/data/postmaster.pid" | tail -1)
  for _ in $(seq 600); do
    if [ "$(sql "$from" "select count(*) from pg_stat_replication where application_name = '$name' and state = 'streaming'")" = 1 ]; then
      sql "$from" "alter system set synchronous_standby_names = '\"$name\"'" && sql "$from" "select pg_reload_conf()" >/dev/null
      until [ "$(sql "$from" "select sync_state from pg_stat_replication where application_name = '$name'")" = sync ]; do sleep 0.1; done
      return
    fi
    sleep 0.1
  done
  fail "the standby does not stream from $1, see $log"
}

case ${1:-} in
start) start ;;
stop)
  if pid >/dev/null; then as "$bin/pg_ctl" -D "$data" -m fast -t 60 -w stop >/dev/null; fi
  echo "postgres stopped"
  ;;
kill)
  if p=$(pid); then
    children=$(pgrep -P "$p" || true) # each is a session of its own
    # shellcheck disable=SC2086
    kill -9 "$p" $children 2>/dev/null || true
    while kill -0 "$p" 2>/dev/null; do sleep 0.02; done
  fi
  echo "postgres killed"
  ;;
status)
  if p=$(pid); then echo "postgres runs: pid $p, $dsn, log $log"; else echo "postgres does not run"; exit 1; fi
  ;;
promote) as "$bin/pg_ctl" -D "$data" -t 60 -w promote >/dev/null && echo "postgres promoted" ;;
dsn) echo "$dsn" ;;
*) fail "usage: postgres.sh start|stop|kill|status|promote|dsn" ;;
esac
