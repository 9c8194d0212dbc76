#!/usr/bin/env bash
# One SQS server (ElasticMQ) on loopback, whose messages survive a kill:
# sqs.sh start | stop | status. start is idempotent and waits until it answers.
#
#	NOTIFY_ENGINES_DIR   where data lies; default .engines in the repository
#	NOTIFY_SQS_PORT      default 19324
set -euo pipefail
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

dir=$ENGINES_DIR/sqs
address=http://127.0.0.1:$SQS_PORT

answers() { curl -fs -m 5 -o /dev/null "$address/?Action=ListQueues"; }

start() {
	local began
	began=$(engine_clock)
	engine_java
	engine_maven elasticmq
	if ! engine_running "$dir"; then
		engine_port_free sqs "$SQS_PORT"
		mkdir -p "$dir"
		# WRITE_DELAY=0: without it a kill loses what was acknowledged last.
		cat >"$dir/elasticmq.conf" <<-CONF
			include classpath("application.conf")
			node-address { protocol = http, host = "127.0.0.1", port = $SQS_PORT, context-path = "" }
			rest-sqs { enabled = true, bind-port = $SQS_PORT, bind-hostname = "127.0.0.1", sqs-limits = strict }
			rest-stats { enabled = false }
			queues-storage { enabled = true, path = "$dir/queues.conf" }
			messages-storage { enabled = true, uri = "jdbc:h2:$dir/messages;WRITE_DELAY=0" }
		CONF
		engine_start sqs "$dir" "$JAVA" -Xmx256m -XX:+UseSerialGC -Dconfig.file="$dir/elasticmq.conf" \
			-cp "$ENGINES_LIB/elasticmq/*" org.elasticmq.server.Main
	fi
	engine_need curl curl
	engine_wait sqs "$dir" 120 answers
	engine_ready sqs "$address" "$dir/server.log" "$(engine_since "$began")"
}

status() {
	engine_running "$dir" || { echo 'sqs does not run'; exit 1; }
	echo "sqs runs: pid $(engine_pid "$dir"), $address, log $dir/server.log"
}

case ${1:-} in
start | status) "$1" ;;
stop) engine_stop sqs "$dir" 10 ;;
*)
	echo "usage: sqs.sh start | stop | status" >&2
	exit 2
	;;
esac
