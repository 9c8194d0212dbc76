#!/usr/bin/env bash
# One Kafka broker (KRaft), or three with NODES=3: kafka.sh start | stop | status.
#
# NODES=3: replication 3, min.insync.replicas 2, racks a, b and c; node n listens at
# the port of the first + 100 (n - 1).
# KAFKA_SECURE=1: SASL over TLS (SCRAM, PLAIN, and OAUTHBEARER with unsigned tokens), and a
# client certificate is asked for; the
# certificates are in DIR/certs (certs.sh), the users admin and notifyd, whose
# passwords are the files DIR/certs/admin.password and notifyd.password.
# KAFKA_RETENTION_CHECK_MS: how often retention removes segments; 5 minutes.
# NOTIFY_ENGINES_DIR and NOTIFY_KAFKA_PORT move it: tests that kill a broker have
# one of their own.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NODES=${NODES:-1}
case $NODES in
1) base=$ENGINES_DIR/kafka ;;
3) base=$ENGINES_DIR/kafka3 ;;
*) engine_fail "NODES is $NODES; it is 1 or 3" ;;
esac
secure=${KAFKA_SECURE:-}
certs=$base/certs

node_dir() { [ "$NODES" = 1 ] && echo "$base" || echo "$base/$1"; }
node_name() { [ "$NODES" = 1 ] && echo kafka || echo "kafka-$1"; }
node_port() { echo $((KAFKA_PORT + 100 * ($1 - 1))); }
controller_port() { echo $((KAFKA_CONTROLLER_PORT + 100 * ($1 - 1))); }

addresses() {
	local n list=
	for n in $(seq "$NODES"); do list+=${list:+,}127.0.0.1:$(node_port "$n"); done
	echo "$list"
}

voters() {
	local n list=
	for n in $(seq "$NODES"); do list+=${list:+,}$n@127.0.0.1:$(controller_port "$n"); done
	echo "$list"
}

# configure N writes what one broker is told.
configure() {
	local n=$1 dir minISR=1 protocol=PLAINTEXT racks=(a b c)
	# A broker that was killed comes back when its session is over. With three, that
	# is also how long its partitions are without a leader; with one, a machine that
	# is busy must not take it for dead.
	local session=6000
	[ "$NODES" = 1 ] || { minISR=2 session=2000; }
	session=${KAFKA_SESSION_MS:-$session}
	dir=$(node_dir "$n")
	[ -z "$secure" ] || protocol=SASL_SSL
	cat <<-END
		process.roles=broker,controller
		node.id=$n
		broker.rack=${racks[$((n - 1))]}
		controller.quorum.voters=$(voters)
		listeners=$protocol://127.0.0.1:$(node_port "$n"),CONTROLLER://127.0.0.1:$(controller_port "$n")
		advertised.listeners=$protocol://127.0.0.1:$(node_port "$n")
		inter.broker.listener.name=$protocol
		controller.listener.names=CONTROLLER
		listener.security.protocol.map=CONTROLLER:PLAINTEXT,$protocol:$protocol
		log.dirs=$dir/data
		auto.create.topics.enable=false
		default.replication.factor=$NODES
		min.insync.replicas=$minISR
		offsets.topic.replication.factor=$NODES
		offsets.topic.num.partitions=8
		transaction.state.log.replication.factor=$NODES
		transaction.state.log.min.isr=$minISR
		share.coordinator.state.topic.replication.factor=$NODES
		share.coordinator.state.topic.min.isr=$minISR
		group.initial.rebalance.delay.ms=0
		log.retention.check.interval.ms=${KAFKA_RETENTION_CHECK_MS:-300000}
		log.initial.task.delay.ms=${KAFKA_RETENTION_CHECK_MS:-30000}
		replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
		broker.session.timeout.ms=$session
		broker.heartbeat.interval.ms=$((session / 4))
	END
	[ -z "$secure" ] || cat <<-END
		sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER
		sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
		listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="$(cat "$certs/admin.password")";
		listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
		listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_notifyd="$(cat "$certs/notifyd.password")";
		listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
		ssl.keystore.type=PKCS12
		ssl.keystore.location=$certs/server.p12
		ssl.keystore.password=$(cat "$certs/store.password")
		ssl.truststore.type=PEM
		ssl.truststore.location=$certs/ca.pem
		listener.name.sasl_ssl.ssl.client.auth=required
		authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
		super.users=User:admin;User:notifyd;User:ANONYMOUS
	END
}

# prepare N makes the folder of a broker, once.
prepare() {
	local n=$1 dir scram=()
	dir=$(node_dir "$n")
	mkdir -p "$dir"
	(umask 077 && configure "$n" >"$dir/server.properties")
	cat >"$dir/log4j2.properties" <<-'END'
		rootLogger.level = info
		rootLogger.appenderRef.out.ref = out
		appender.out.type = Console
		appender.out.name = out
		appender.out.layout.type = PatternLayout
		appender.out.layout.pattern = %d %p %m (%c)%n
	END
	[ ! -e "$dir/data/meta.properties" ] || return 0
	if [ -n "$secure" ]; then
		local u m
		for u in admin notifyd; do
			for m in SCRAM-SHA-512 SCRAM-SHA-256; do
				scram+=(--add-scram "$m=[name=$u,password=$(cat "$certs/$u.password")]")
			done
		done
	fi
	rm -rf "$dir/data"
	"$JAVA" -Xmx128m -XX:TieredStopAtLevel=1 -cp "$ENGINES_LIB/kafka/*" kafka.tools.StorageTool \
		format -t "$(cat "$base/cluster-id")" -c "$dir/server.properties" "${scram[@]}" >"$dir/format.log" 2>&1 ||
		engine_fail "$(node_name "$n"): the data folder cannot be formatted, see $dir/format.log: $(tail -1 "$dir/format.log")"
}

start_node() {
	local n=$1 dir name began
	dir=$(node_dir "$n") name=$(node_name "$n") began=$(engine_clock)
	if ! engine_running "$dir"; then
		engine_port_free "$name" "$(node_port "$n")" || return
		engine_port_free "$name" "$(controller_port "$n")" || return
		prepare "$n" || return
		engine_start "$name" "$dir" "$JAVA" "-Xms256m" "-Xmx${KAFKA_HEAP:-512m}" -XX:+ExitOnOutOfMemoryError \
			"-Dlog4j2.configurationFile=file://$dir/log4j2.properties" -cp "$ENGINES_LIB/kafka/*" \
			kafka.Kafka "$dir/server.properties" || return
	fi
	engine_wait "$name" "$dir" 300 grep -q 'Kafka Server started' "$dir/server.log" || return
	engine_ready "$name" "127.0.0.1:$(node_port "$n")" "$dir/server.log" "$(engine_since "$began")"
}

start() {
	local n pids=() failed=
	engine_java
	engine_maven kafka
	mkdir -p "$base"
	[ -s "$base/cluster-id" ] || head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | cut -c1-22 >"$base/cluster-id"
	if [ -n "$secure" ]; then
		"$engines_root/scripts/engines/certs.sh" "$certs"
		local u
		for u in admin notifyd; do
			[ -s "$certs/$u.password" ] || (umask 077 && openssl rand -hex 16 >"$certs/$u.password")
		done
	fi
	for n in $(seq "$NODES"); do
		start_node "$n" &
		pids+=($!)
	done
	for n in "${pids[@]}"; do wait "$n" || failed=1; done
	[ -z "$failed" ]
}

stop() {
	local dir
	# Both kinds: whoever stops need not know how it was started. All at once, for a
	# controller quorum does not end in peace one by one.
	for dir in "$ENGINES_DIR/kafka" "$ENGINES_DIR"/kafka3/[123]; do
		[ ! -e "$dir/pid" ] || engine_stop "kafka ($dir)" "$dir" 60 &
	done
	wait
}

status() {
	local n dir down=
	for n in $(seq "$NODES"); do
		dir=$(node_dir "$n")
		if engine_running "$dir"; then
			echo "$(node_name "$n") runs, pid $(engine_pid "$dir"), 127.0.0.1:$(node_port "$n"), log $dir/server.log"
		else
			echo "$(node_name "$n") does not run"
			down=1
		fi
	done
	[ -z "$down" ] || return 3
}

case ${1:-} in
start | stop | status | addresses) "$1" ;;
*)
	echo "usage: kafka.sh start | stop | status | addresses" >&2
	exit 2
	;;
esac
