#!/usr/bin/env bash
# Shows the main job of notifyd: build, start a server with simulated providers, send, look
# at the outcomes, compare them with the providers' ledger, stop.
set -euo pipefail
cd "$(dirname "$0")/.."

echo 'Building notifyd and notifyctl: some seconds, or several minutes the first time.'
make --no-print-directory build >/dev/null
work=$(mktemp -d)
export XDG_CONFIG_HOME=$work/config XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data
export PATH=$PWD/bin:$PATH
export NOTIFYCTL_TIMEOUT=10m # a busy machine is slow, and nothing is measured here
server=
finish() {
	if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then wait "$server" || true; fi
	rm -rf "$work"
}
trap finish EXIT

# until_true repeats a command until it succeeds, for ten minutes at most. It never fails:
# the checks at the end of the script find what did not happen.
until_true() {
	local end=$((SECONDS + 600))
	until "$@"; do
		kill -0 "$server" 2>/dev/null || { cat "$work/dev.err"; exit 1; }
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

say "1. A server: log, store, workers and simulated providers in one process"
echo '$ notifyd dev --ephemeral --port 0 --ready-timeout 10m'
notifyd dev --ephemeral --port 0 --ready-timeout 10m >"$work/dev.out" 2>"$work/dev.err" &
server=$!
until_true grep -q '^Try:' "$work/dev.out"
sed '/^Try:/,$d' "$work/dev.out"

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
run notifyctl send -f "$work/batch.ndjson"

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
awk -v url="$callback" -v start="$start" 'BEGIN { for (i = 0; i < 10000; i++) { due = start + i; printf "{\"callback_url\":\"%stimers?due=%.0f\",\"fire_at\":\"%s.%03dZ\",\"exact\":true}\n", url, due, strftime("%Y-%m-%dT%H:%M:%S", int(due / 1000), 1), due % 1000 } }' >"$work/triggers.ndjson"
run notifyctl trigger create -f "$work/triggers.ndjson"
run notifyctl schedule forecast
fired=10001
called=0
all_called() { called=$(notifyctl sim callbacks -o json --jq .taken) && [ "$called" -ge "$fired" ]; }
until_true all_called
run notifyctl sim callbacks
early=$(notifyctl sim callbacks -o json --jq .early)
twice=$(notifyctl sim callbacks -o json --jq .duplicates)

say "7. What failed for good: a template is refused, repaired, and 1,000 mails are replayed"
run notifyctl sim rule add error --provider sendgrid --template spring --status 400
awk 'BEGIN { for (i = 0; i < 1000; i++) printf "{\"channel\":\"email\",\"category\":\"transactional\",\"to\":{\"user_id\":\"user-%03d\"},\"content\":{\"template\":\"spring\",\"variables\":{\"n\":%d}}}\n", i % 100, i }' >"$work/spring.ndjson"
run notifyctl send -f "$work/spring.ndjson"
dead=0
all_dead() { dead=$(notifyctl dlq stats --template spring -o json --jq .total) && [ "$dead" -ge 1000 ]; }
until_true all_dead
run notifyctl dlq top
run notifyctl sim rule rm "$(notifyctl sim rule ls -o json --jq '.items[0].number')"
run notifyctl dlq replay --template spring --rate 500/s --canary 20 --plan-out "$work/plan.json"
run notifyctl dlq replay --plan "$work/plan.json" --yes --reason 'template repaired'
replayed=$(notifyctl job ls -o json --jq '.items[0].done')
refailed=$(notifyctl job ls -o json --jq '.items[0].outcomes.refailed')
run notifyctl audit verify

say "8. The providers' ledger: what really arrived"
sent=$((3 + 300 + 100000 + 1 + 1000))
delivered=0
all_delivered() { delivered=$(notifyctl sim summary -o json --jq .ids) && [ "$delivered" -ge "$sent" ]; }
until_true all_delivered
run notifyctl sim summary
duplicates=$(notifyctl sim summary -o json --jq .duplicates)
run notifyctl doctor || true

say "9. Conservation: what was accepted has ended, or is on its way"
audit=$(notifyctl audit | tee "$work/audit" | tail -1) || true
run tail -3 "$work/audit"
drift=${audit##*drift=}

say "10. Stop: SIGTERM drains"
kill -TERM "$server"
wait "$server" && echo "stopped cleanly"
server=
lost=$((sent - delivered))
echo
echo "demo sent=$sent delivered=$delivered lost=$lost duplicates=$duplicates triggers=$fired called=$called early=$early called_twice=$twice dead=$dead replayed=$replayed refailed=$refailed audit drift=$drift"
[ "$lost" -eq 0 ] && [ "$duplicates" -eq 0 ] && [ "$called" -eq "$fired" ] && [ "$early" -eq 0 ] && [ "$twice" -eq 0 ] &&
	[ "$dead" -eq 1000 ] && [ "$replayed" -eq 1000 ] && [ "$refailed" -eq 0 ] && [ "$drift" = 0 ]
