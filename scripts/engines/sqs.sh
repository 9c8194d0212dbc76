#!/usr/bin/env bash
# One SQS server (ElasticMQ) on loopback for tests and demonstrations.
#
#   sqs.sh start|stop|status
#
# start waits until it answers and prints its address and the path of its log;
# again is the same as once. By environment:
#
#   NOTIFY_ENGINES_DIR   where data lies; default .engines in the repository
#   SQS_PORT             default 19324
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck disable=SC1091
if [ -e scripts/engines/versions.env ]; then . scripts/engines/versions.env; fi

root=${NOTIFY_ENGINES_DIR:-$PWD/.engines}
dir=$root/sqs log=$root/sqs/sqs.log
port=${SQS_PORT:-19324}
version=${ELASTICMQ_VERSION:-1.6.16}
scala=2.13
jars=$dir/jars-$version
address=http://127.0.0.1:$port

fail() { echo "sqs: $*" >&2; exit 1; }

pid() {
  local p
  p=$(cat "$dir/pid" 2>/dev/null) && [ -n "$p" ] && grep -q org.elasticmq "/proc/$p/cmdline" 2>/dev/null && echo "$p"
}

# Maven puts every jar into its cache, and copies them from there.
fetch() {
  [ -e "$jars/.complete" ] && return
  command -v mvn >/dev/null || fail "mvn is not installed. On Debian: apt-get install maven"
  rm -rf "$jars" && mkdir -p "$jars"
  cat >"$dir/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>notifyd</groupId><artifactId>sqs</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.elasticmq</groupId><artifactId>elasticmq-server_$scala</artifactId><version>$version</version></dependency></dependencies>
</project>
POM
  mvn -q -B -f "$dir/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" >"$dir/mvn.log" 2>&1 ||
    fail "ElasticMQ $version is not had from Maven Central, see $dir/mvn.log; check that the registry, or the mirror in ~/.m2/settings.xml, is reached"
  touch "$jars/.complete"
}

answers() { curl -fs -m 5 -o /dev/null "$address/?Action=ListQueues" 2>/dev/null; }

start() {
  command -v java >/dev/null || fail "java is not installed. On Debian: apt-get install openjdk-17-jre-headless"
  mkdir -p "$dir"
  if ! pid >/dev/null; then
    if answers; then fail "another process answers at $address"; fi
    fetch
    # WRITE_DELAY=0: without it a kill loses what was acknowledged last.
    cat >"$dir/elasticmq.conf" <<CONF
include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = $port, context-path = "" }
rest-sqs { enabled = true, bind-port = $port, bind-hostname = "127.0.0.1", sqs-limits = strict }
rest-stats { enabled = false }
queues-storage { enabled = true, path = "$dir/queues.conf" }
messages-storage { enabled = true, uri = "jdbc:h2:$dir/messages;WRITE_DELAY=0" }
CONF
    setsid java -Xmx256m -XX:+UseSerialGC -Dconfig.file="$dir/elasticmq.conf" -cp "$jars/*" org.elasticmq.server.Main >>"$log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
  fi
  for _ in $(seq 1200); do
    if answers; then break; fi
    pid >/dev/null || fail "it ended, see $log"
    sleep 0.1
  done
  answers || fail "it does not answer, see $log"
  echo "sqs $address log $log"
}

case ${1:-} in
start) start ;;
stop)
  if p=$(pid); then
    kill "$p"
    for _ in $(seq 100); do
      kill -0 "$p" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$p" 2>/dev/null || true
  fi
  rm -f "$dir/pid"
  echo "sqs stopped"
  ;;
status)
  if p=$(pid); then echo "sqs runs: pid $p, $address, log $log"; else echo "sqs does not run"; exit 1; fi
  ;;
*) fail "usage: sqs.sh start|stop|status" ;;
esac
