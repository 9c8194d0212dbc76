#!/usr/bin/env bash
# Shows the main job of notifyd on real servers: build, start Kafka, Cassandra, Redis and
# PostgreSQL, start two processes for each role, send, look at the outcomes, compare them
# with the providers' ledger, stop the processes. The servers keep running until make
# engines-stop. CONFIG names another configuration of servers.
set -euo pipefail
cd "$(dirname "$0")/.."

make --no-print-directory build >/dev/null
work=$(mktemp -d)
export XDG_CONFIG_HOME=$work/config XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data
export PATH=$PWD/bin:$PATH
export NOTIFYCTL_TIMEOUT=10m # a busy machine is slow, and nothing is measured here
once=$(date +%s) # makes keys unique: the servers remember those of earlier runs
many=${TRIGGERS:-2000} # each trigger takes three conditional writes in Cassandra
# Long time-outs, because servers on a busy machine are slow and nothing is measured here.
patient="--set kafka.append_timeout=20s --set cassandra.timeout=20s"
config=${CONFIG:-$PWD/notifyd.engines.yaml}
server=
pids=()
finish() {
	# Stop the process with the simulated providers last: the other roles still call them.
	for p in "${pids[@]}"; do kill -TERM "$p" 2>/dev/null || true; done
	for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
	if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then wait "$server" || true; fi
	if [ -n "${KEEP:-}" ]; then echo "logs are in $work"; else rm -rf "$work"; fi
}
trap finish EXIT

# until_true repeats a command until it succeeds, for ten minutes at most. It never fails:
# the checks at the end of the script find what did not happen.
until_true() {
	local end=$((SECONDS + 600))
	until "$@"; do
		kill -0 "$server" 2>/dev/null || { cat "$work/dev.err"; exit 1; }
		for i in "${!pids[@]}"; do
			kill -0 "${pids[$i]}" 2>/dev/null || { echo "process $((i + 1)) ended:"; tail -5 "$work/role-$((i + 1)).err"; exit 1; }
		done
		[ "$SECONDS" -lt "$end" ] || return 0
		sleep 0.1
	done
}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
run() {
	local line='$' arg
	for arg in "$@"; do
		case $arg in *[!A-Za-z0-9_./:=@-]*) line+=" '$arg'" ;; *) line+=" $arg" ;; esac
	done
	printf '%s\n' "${line//$work\//}"
	"$@"
}

say "1. Servers: Kafka, Cassandra, Redis, PostgreSQL; their topics and tables"
[ -n "${CONFIG:-}" ] || ONLY="kafka cassandra redis postgres" scripts/engines.sh start
echo '$ notifyd migrate up --config notifyd.engines.yaml'
notifyd migrate up --config "$config" >"$work/migrate.out"
tail -2 "$work/migrate.out"
echo '$ notifyd dev --config notifyd.engines.yaml --role api          (with simulated providers)'
# shellcheck disable=SC2086
notifyd dev --config "$config" $patient --set roles=api --data-dir "$work/dev" --port 0 --ready-timeout 10m >"$work/dev.out" 2>"$work/dev.err" &
server=$!
until_true test -s "$work/dev/beside.yaml"
roles="api worker worker:push,worker:sms scheduler scheduler dispatcher dispatcher operator operator"
n=0
for role in $roles; do
	n=$((n + 1))
	echo "\$ notifyd serve --config notifyd.engines.yaml --config beside.yaml --role $role"
	# shellcheck disable=SC2086
	notifyd serve --config "$config" --config "$work/dev/beside.yaml" $patient --role "$role" --set api.listen=127.0.0.1:0 --set api.admin= --set logging.level=info --set data_dir="$work/none" --set instance="demo-$n-${role%%:*}" >"$work/role-$n.out" 2>"$work/role-$n.err" &
	pids+=($!)
done
until_true grep -q '^Try:' "$work/dev.out"
for i in $(seq 1 $n); do until_true grep -q '"msg":"ready"' "$work/role-$i.err"; done
sed '/^Try:/,$d' "$work/dev.out"
# Messages that an earlier run left behind are delivered first and not counted.
no_lag() { [ "$(notifyctl lag -o json --jq '[.items[].lag] | add')" = 0 ]; }
until_true no_lag
before=$(notifyctl sim summary -o json --jq .ids)

say "2. One of each channel"
run notifyctl send --channel push --user ann --title 'Your order' --body 'It is on its way.' --wait
run notifyctl send --channel sms --category otp --user ann --body 'Your code is 123456' --ttl 5m --wait
run notifyctl send --channel email --user ann --title Receipt --body 'Thank you, {{name}}.' --var name=Ann --wait

say "3. A batch of 300 different notifications"
for i in $(seq 0 99); do
	u=$(printf 'user-%03d' "$i")
	printf '{"channel":"push","category":"transactional","to":{"user_id":"%s"},"content":{"title":"Hello","body":"You are number %d"}}\n' "$u" "$i"
	printf '{"channel":"email","category":"transactional","to":{"user_id":"%s"},"content":{"title":"News %d","body":"For you alone"}}\n' "$u" "$i"
	printf '{"channel":"sms","category":"alert","to":{"user_id":"%s"},"content":{"body":"Alert %d"}}\n' "$u" "$i"
done >"$work/batch.ndjson"
run notifyctl send -f "$work/batch.ndjson" --idempotency-key "batch-$once"

say "4. A fan-out: one content, 100,000 receivers"
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "{\"user_id\":\"fan-%06d\",\"address\":\"apns:%064x\"}\n", i, i + 1000000 }' >"$work/receivers.ndjson"
run notifyctl send --channel push --category marketing --title 'Summer sale' --body 'Everything must go.' --fanout "$work/receivers.ndjson" --wait --timeout 5m

say "5. What happened to the first one"
id=$(notifyctl ls --user ann -o json --jq '.items[-1].notification_id // .notifications[-1].notification_id')
run notifyctl why "$id"
run notifyctl ls --user ann

say "6. Later: a scheduled push, a callback, and one cancelled of each"
callback=$(sed -n 's/^  Callbacks \([^ ]*\).*/\1/p' "$work/dev.out")
run notifyctl schedule --in 6s --channel push --user bob --body 'Your table is ready'
run notifyctl trigger create --in 6s --url "${callback}hold" --payload '{"hold":"h-7719"}'
echo '$ id=$(notifyctl schedule --in 1h ...); notifyctl cancel $id'
off=$(notifyctl -q schedule --in 1h --channel push --user bob --body 'Never sent' -o json --jq .notification_id)
notifyctl cancel "$off"
echo '$ id=$(notifyctl trigger create --in 1h ...); notifyctl cancel $id'
notifyctl cancel "$(notifyctl -q trigger create --in 1h --url "${callback}never" -o json --jq .trigger_id)"
start=$(($(date +%s%3N) + 6000))
awk -v n="$many" -v url="$callback" -v start="$start" 'BEGIN { for (i = 0; i < n; i++) { due = start + i; printf "{\"callback_url\":\"%stimers?due=%.0f\",\"fire_at\":\"%s.%03dZ\",\"exact\":true}\n", url, due, strftime("%Y-%m-%dT%H:%M:%S", int(due / 1000), 1), due % 1000 } }' >"$work/triggers.ndjson"
# On a busy machine Cassandra is slow at times, and notifyd asks the caller to wait. The
# repeated command continues where the first one stopped.
try=0
until run notifyctl trigger create -f "$work/triggers.ndjson"; do
	try=$((try + 1))
	[ "$try" -lt 20 ] || exit 1
	sleep 2
done
run notifyctl schedule forecast
fired=$((many + 1))
called=0
all_called() { called=$(notifyctl sim callbacks -o json --jq .taken) && [ "$called" -ge "$fired" ]; }
until_true all_called
run notifyctl sim callbacks
early=$(notifyctl sim callbacks -o json --jq .early)
twice=$(notifyctl sim callbacks -o json --jq .duplicates)

say "7. What failed for good: a template is refused, repaired, and 1,000 mails are replayed"
run notifyctl sim rule add error --provider sendgrid --template "spring-$once" --status 400
awk -v template="spring-$once" 'BEGIN { for (i = 0; i < 1000; i++) printf "{\"channel\":\"email\",\"category\":\"transactional\",\"to\":{\"user_id\":\"user-%03d\"},\"content\":{\"template\":\"%s\",\"variables\":{\"n\":%d}}}\n", i % 100, template, i }' >"$work/spring.ndjson"
run notifyctl send -f "$work/spring.ndjson" --idempotency-key "spring-$once"
dead=0
all_dead() { dead=$(notifyctl dlq stats --template "spring-$once" -o json --jq .total) && [ "$dead" -ge 1000 ]; }
until_true all_dead
run notifyctl dlq top
run notifyctl sim rule rm "$(notifyctl sim rule ls -o json --jq '.items[0].number')"
run notifyctl dlq replay --template "spring-$once" --rate 500/s --canary 20 --plan-out "$work/plan.json"
run notifyctl dlq replay --plan "$work/plan.json" --yes --reason 'template repaired'
replayed=$(notifyctl job ls -o json --jq '.items[0].done')
refailed=$(notifyctl job ls -o json --jq '.items[0].outcomes.refailed')
run notifyctl audit verify

say "8. The providers' ledger: what really arrived"
sent=$((3 + 300 + 100000 + 1 + 1000))
delivered=0
all_delivered() { delivered=$(($(notifyctl sim summary -o json --jq .ids) - before)) && [ "$delivered" -ge "$sent" ]; }
until_true all_delivered
run notifyctl sim summary
duplicates=$(notifyctl sim summary -o json --jq .duplicates)
run notifyctl doctor || true

say "9. Conservation: what was accepted has ended, or is on its way"
audit=$(notifyctl audit --since "$((SECONDS + 5))s" | tee "$work/audit" | tail -1) || true
run tail -3 "$work/audit"
drift=${audit##*drift=}

say "10. Stop: SIGTERM drains every process"
stopped=0
for p in "${pids[@]}"; do kill -TERM "$p"; done
for p in "${pids[@]}"; do wait "$p" && stopped=$((stopped + 1)); done
kill -TERM "$server"
wait "$server" && stopped=$((stopped + 1))
echo "$stopped of $((${#pids[@]} + 1)) processes stopped cleanly"
processes=$stopped
pids=() server=
lost=$((sent - delivered))
echo
echo "demo-engines processes=$processes sent=$sent delivered=$delivered lost=$lost duplicates=$duplicates triggers=$fired called=$called early=$early called_twice=$twice dead=$dead replayed=$replayed refailed=$refailed audit drift=$drift"
[ "$lost" -eq 0 ] && [ "$duplicates" -eq 0 ] && [ "$called" -eq "$fired" ] && [ "$early" -eq 0 ] && [ "$twice" -eq 0 ] &&
	[ "$dead" -eq 1000 ] && [ "$replayed" -eq 1000 ] && [ "$refailed" -eq 0 ] && [ "$drift" = 0 ]
