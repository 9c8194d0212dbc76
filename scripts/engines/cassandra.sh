#!/usr/bin/env bash
# A real Cassandra on loopback, from its published Java artifacts: no Docker.
#
#   scripts/engines/cassandra.sh start|stop|status|addresses
#   scripts/engines/cassandra.sh snapshot|restore NAME
#
# snapshot copies all tables of node 1 while it works, with nodetool. restore, while
# that node is stopped, replaces everything that it has by such a copy.
#
# NODES=3 starts three nodes on 127.0.0.1 to 127.0.0.3. A second cluster beside
# the first wants a folder and ports of its own (CASSANDRA_DIR, CASSANDRA_PORT,
# CASSANDRA_STORAGE_PORT, CASSANDRA_JMX_PORT). CASSANDRA_TLS=1 asks clients for
# certificates; CA, node and client certificates are made in $CASSANDRA_DIR/tls.
# CASSANDRA_AUTH=1 asks for a password; the first role is Cassandra's own, cassandra
# with the password cassandra.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
here=$repo/scripts/engines
# shellcheck source=/dev/null
if [ -f "$here/versions.env" ]; then . "$here/versions.env"; fi
engines=${NOTIFY_ENGINES_DIR:-$repo/.engines}
version=${CASSANDRA_VERSION:-5.0.5}
lib=${NOTIFY_ENGINES_LIB:-$repo/.engines/lib}/cassandra # one for every data folder
dir=${CASSANDRA_DIR:-$engines/cassandra}
nodes=${NODES:-1}
port=${CASSANDRA_PORT:-19042}
storage=${CASSANDRA_STORAGE_PORT:-17000}
jmx=${CASSANDRA_JMX_PORT:-17199}
heap=${CASSANDRA_HEAP:-1G}
tls=${CASSANDRA_TLS:-}
auth=${CASSANDRA_AUTH:-}
# Threads that wait for requests spin. Cassandra's default, 128, is for a machine of its own.
threads=${CASSANDRA_REQUEST_THREADS:-16}
# A single node loses acknowledged writes when it is killed in periodic mode;
# three replicas make up for it.
if [ "$nodes" = 1 ]; then sync=${CASSANDRA_COMMITLOG_SYNC:-batch}; else sync=${CASSANDRA_COMMITLOG_SYNC:-periodic}; fi
secret=notifyd # of key stores that hold test certificates only

fail() { echo "cassandra: $*" >&2; exit 1; }

install_jars() {
  [ -f "$lib/cassandra-all-$version.jar" ] && return
  command -v java >/dev/null || fail "java is missing: install a JRE of version 11 or 17 (Debian: openjdk-17-jre-headless)"
  command -v mvn >/dev/null || fail "mvn is missing: install Maven (Debian: maven)"
  mkdir -p "$lib"
  pom=$(mktemp -d)
  trap 'rm -rf "$pom"' RETURN
  cat >"$pom/pom.xml" <<XML
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>notifyd</groupId><artifactId>cassandra</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>$version</version>
  </dependency></dependencies>
</project>
XML
  echo "cassandra: fetching $version"
  mvn -q -B -f "$pom/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$lib" >"$pom/log" 2>&1 ||
    { tail -5 "$pom/log" >&2; fail "org.apache.cassandra:cassandra-all:$version was not fetched: is a Maven repository reached?"; }
}

exports() { # packages that Cassandra opens on Java 17
  local p
  for p in java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch java.base/java.lang.ref \
    java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server \
    java.rmi/sun.rmi.transport.tcp java.sql/java.sql jdk.unsupported/sun.misc \
    jdk.compiler/com.sun.tools.javac.file jdk.compiler/com.sun.tools.javac.api; do
    echo "--add-exports=$p=ALL-UNNAMED"
  done
  for p in java.lang.module jdk.internal.loader jdk.internal.ref jdk.internal.reflect jdk.internal.math \
    jdk.internal.module jdk.internal.util.jar sun.nio.ch java.io java.nio java.util java.util.concurrent \
    java.util.concurrent.atomic java.lang java.net; do
    echo "--add-opens=java.base/$p=ALL-UNNAMED"
  done
  echo "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED"
}

certificates() {
  [ -z "$tls" ] && return
  [ -f "$dir/tls/node.p12" ] && return
  command -v openssl >/dev/null || fail "openssl is missing"
  mkdir -p "$dir/tls"
  (
    cd "$dir/tls"
    umask 077
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=notifyd test CA" -keyout ca.key -out ca.pem 2>/dev/null
    for who in node client; do
      openssl req -newkey rsa:2048 -nodes -subj "/CN=$who" -keyout $who.key -out $who.csr 2>/dev/null
      printf 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3\n' >$who.ext
      openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 -extfile $who.ext -out $who.pem 2>/dev/null
    done
    openssl pkcs12 -export -in node.pem -inkey node.key -certfile ca.pem -passout pass:$secret -out node.p12
    rm -f ca.p12
    keytool -importcert -noprompt -alias ca -file ca.pem -keystore ca.p12 -storetype PKCS12 -storepass $secret 2>/dev/null
  )
}

config() { # node
  local d=$dir/node$1
  mkdir -p "$d"
  cat >"$d/cassandra.yaml" <<YAML
cluster_name: notifyd
num_tokens: 16
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
data_file_directories: [$d/data]
commitlog_directory: $d/commitlog
saved_caches_directory: $d/saved_caches
hints_directory: $d/hints
cdc_raw_directory: $d/cdc
listen_address: 127.0.0.$1
rpc_address: 127.0.0.$1
native_transport_port: $port
storage_port: $storage
ssl_storage_port: $((storage + 1))
start_native_transport: true
auto_bootstrap: false
auto_snapshot: false
commitlog_sync: $sync
commitlog_segment_size: 32MiB
commitlog_total_space: 512MiB
memtable_heap_space: 192MiB
memtable_offheap_space: 192MiB
native_transport_max_threads: $threads
concurrent_reads: 16
concurrent_writes: 32
concurrent_compactors: 1
compaction_throughput: 64MiB/s
paxos_variant: v2
read_request_timeout: 10s
range_request_timeout: 20s
write_request_timeout: 10s
cas_contention_timeout: 5s
truncate_request_timeout: 60s
request_timeout: 20s
native_transport_max_request_data_in_flight: 64MiB
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{seeds: "127.0.0.1:$storage"}]
YAML
  case $sync in
    periodic) echo 'commitlog_sync_period: 10000ms' >>"$d/cassandra.yaml" ;;
    group) echo 'commitlog_sync_group_window: 10ms' >>"$d/cassandra.yaml" ;;
  esac
  if [ -n "$tls" ]; then
    cat >>"$d/cassandra.yaml" <<YAML
client_encryption_options:
  enabled: true
  optional: false
  keystore: $dir/tls/node.p12
  keystore_password: $secret
  require_client_auth: true
  truststore: $dir/tls/ca.p12
  truststore_password: $secret
  store_type: PKCS12
YAML
  fi
  if [ -n "$auth" ]; then
    cat >>"$d/cassandra.yaml" <<YAML
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
YAML
  fi
  cat >"$d/logback.xml" <<'XML'
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
  <logger name="org.apache.cassandra.service" level="INFO"/>
</configuration>
XML
}

pid() { # node
  local p
  p=$(cat "$dir/node$1/pid" 2>/dev/null) || return 1
  # The id may belong to somebody else since.
  grep -qzF "$dir/node$1/cassandra.yaml" "/proc/$p/cmdline" 2>/dev/null || return 1
  echo "$p"
}

answers() { (exec 3<>"/dev/tcp/127.0.0.$1/$port") 2>/dev/null; }

start_node() { # node
  local d=$dir/node$1 flags
  if pid "$1" >/dev/null; then return; fi
  if answers "$1"; then fail "127.0.0.$1:$port is in use by something else"; fi
  config "$1"
  flags="-Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.superuser_setup_delay_ms=0"
  if [ "$1" = 1 ] && [ "$nodes" = 1 ]; then flags+=" -Dcassandra.ring_delay_ms=1"; else flags+=" -Dcassandra.ring_delay_ms=6000"; fi
  # shellcheck disable=SC2046,SC2086
  setsid nohup java $(exports) -Djdk.attach.allowAttachSelf=true -javaagent:"$(echo "$lib"/jamm-*.jar)" \
    -Xms"$heap" -Xmx"$heap" -XX:+UseSerialGC -Xss512k -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true \
    -Dcassandra.storagedir="$d" -Dcassandra.config="file://$d/cassandra.yaml" -Dlogback.configurationFile="$d/logback.xml" \
    -Dcassandra-foreground=yes -Dcassandra.jmx.local.port=$((jmx + $1 - 1)) $flags \
    -cp "$lib/*" org.apache.cassandra.service.CassandraDaemon >>"$d/log" 2>&1 </dev/null &
  echo $! >"$d/pid"
}

wait_node() { # node
  local n
  for n in $(seq 1 3000); do
    answers "$1" && return
    # Not by its command line: the process may not have become java yet.
    kill -0 "$(cat "$dir/node$1/pid")" 2>/dev/null || { tail -5 "$dir/node$1/log" >&2; fail "node $1 ended: see $dir/node$1/log"; }
    sleep 0.2
  done
  fail "node $1 does not answer on 127.0.0.$1:$port after 10 minutes: see $dir/node$1/log"
}

snapshot() { # name
  local d=$dir/node1 copy=$dir/node1/copies/$1 files
  # shellcheck disable=SC2046
  java $(exports) -Dlogback.configurationFile="file://$d/logback.xml" -cp "$lib/*" \
    org.apache.cassandra.tools.NodeTool -h 127.0.0.1 -p "$jmx" snapshot -t "$1"
  for files in "$d"/data/*/*/snapshots/"$1"; do
    mkdir -p "$copy/${files#"$d"/data/}"
    mv "$files" "$(dirname "$copy/${files#"$d"/data/}")"
  done
}

restore() { # name
  local d=$dir/node1 copy=$dir/node1/copies/$1 files table
  [ -d "$copy" ] || fail "there is no snapshot $1"
  if pid 1 >/dev/null; then fail "node 1 works: stop it first"; fi
  rm -rf "$d/data" "$d/commitlog" "$d/saved_caches" "$d/hints" "$d/cdc"
  for files in "$copy"/*/*/snapshots/"$1"; do
    table=${files#"$copy"/}
    table=$d/data/${table%/snapshots/*}
    mkdir -p "$table"
    cp -p "$files"/* "$table"
  done
}

case ${1:-} in
  start)
    install_jars
    certificates
    for n in $(seq 1 "$nodes"); do # one after the other: each has to find the ones before
      start_node "$n"
      wait_node "$n"
    done
    echo "cassandra: 127.0.0.1:$port ($nodes node(s), commitlog_sync $sync), log $dir/node1/log"
    ;;
  stop)
    for d in "$dir"/node*/; do
      [ -d "$d" ] || continue
      n=$(basename "$d"); n=${n#node}
      p=$(pid "$n") || continue
      kill "$p"
      for _ in $(seq 1 150); do kill -0 "$p" 2>/dev/null || break; sleep 0.2; done
      if kill -0 "$p" 2>/dev/null; then kill -9 "$p"; fi
      rm -f "$d/pid"
    done
    ;;
  status)
    up=0
    for n in $(seq 1 "$nodes"); do
      if pid "$n" >/dev/null && answers "$n"; then
        echo "cassandra: node $n up on 127.0.0.$n:$port"
        up=$((up + 1))
      else
        echo "cassandra: node $n down, log $dir/node$n/log"
      fi
    done
    [ "$up" = "$nodes" ]
    ;;
  snapshot | restore)
    [ -n "${2:-}" ] || fail "$1 needs a name"
    "$1" "$2"
    ;;
  addresses) seq -s, -f "127.0.0.%g:$port" "$nodes" ;;
  *) fail "usage: cassandra.sh start|stop|status|addresses|snapshot|restore" ;;
esac
