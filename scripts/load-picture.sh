#!/usr/bin/env bash
# Operates the live screen of a load run by keys in tmux, and takes pictures of the screen and
# of the report:  load-picture.sh [OUTDIR]  (default docs/img)
# It needs notifyctl on the PATH or in ./bin, tmux, and chromium (CHROMIUM names another
# program). Without chromium it takes no pictures but still checks the screen.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath "${1:-docs/img}") here=$PWD/scripts work=$(mktemp -d) chromium=${CHROMIUM:-chromium}
export PATH=$PWD/bin:$PATH XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config XDG_STATE_HOME=$work/state
command -v tmux >/dev/null || { echo "no tmux: install it" >&2; exit 1; }
tm() { tmux -S "$work/tmux" -f /dev/null "$@"; }
trap 'tm kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

cat >"$work/picture.yaml" <<'YAML'
name: apns-away
about: Pushes and codes by SMS; APNs is away for eight seconds, then a campaign doubles the rate.
server: {mode: pipeline, latency: 20ms}
drain: 1m
phases:
  - name: warm-up
    duration: 5s
    warmup: true
    steps: [{name: pushes, target: http-batch, size: 20, rate: 200, users: 20000, addresses: true, workers: 8}]
  - name: steady
    duration: 40s
    steps:
      - {name: pushes, target: http-batch, size: 20, rate: 500, arrival: poisson, users: 20000, addresses: true, workers: 8}
      - {name: codes, target: http-single, channel: sms, category: otp, rate: 30, users: 20000, addresses: true, workers: 8}
    faults: [{name: apns away, at: 12s, for: 8s, provider: apns, do: outage}]
  - name: campaign
    duration: 30s
    steps:
      - {name: pushes, target: http-batch, size: 20, rate: 1000, arrival: poisson, users: 20000, addresses: true, workers: 8}
      - {name: codes, target: http-single, channel: sms, category: otp, rate: 30, users: 20000, addresses: true, workers: 8}
thresholds:
  - lost == 0
  - duplicates == 0
  - response{step=codes}.p99 < 5s
  - response{step=pushes}.p99 < 1ms
YAML

screen() { tm capture-pane -p; }
await() { # seconds text
	for _ in $(seq $(($1 * 5))); do
		sleep 0.2
		screen | grep -q -- "$2" && return
	done
	echo "the screen never showed: $2" >&2
	screen >&2
	exit 1
}
picture() { # name width height
	tm capture-pane -e -p | awk -f "$here/screen.awk" >"$work/$1.html"
	shoot "$work/$1.html" "$1" "$2" "$3"
}
shoot() { # page name width height [flags]
	command -v "$chromium" >/dev/null || return 0
	"$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$work/chromium" --hide-scrollbars \
		--window-size="$3,$4" --screenshot="$out/$2.png" "${@:5}" "file://$1" >/dev/null 2>&1
	echo "$out/$2.png"
}

tm new-session -d -x 160 -y 48 "LC_ALL=C.UTF-8 TERM=xterm-256color PS1='\$ ' sh -i"

# Three agents load a server that runs, and one of them is killed in the middle.
agents_picture() {
	cat >"$work/agents.yaml" <<'YAML'
name: three-agents
duration: 40s
steps:
  - {name: pushes, target: http-batch, size: 20, rate: 600, arrival: poisson, users: 20000, addresses: true, workers: 4}
  - {name: codes, target: http-single, channel: sms, category: otp, rate: 30, users: 20000, addresses: true, workers: 4}
drain: 1m
thresholds: [lost == 0, duplicates == 0, "response{step=codes}.p99 < 5s"]
YAML
	notifyd dev --ephemeral --port 7520 --context picture --seed none >"$work/dev.log" 2>&1 &
	local dev=$! ports=(7531 7532 7533) pids=() list=
	for port in "${ports[@]}"; do
		notifyctl load agent --listen "127.0.0.1:$port" >"$work/agent-$port.log" 2>&1 &
		pids+=($!)
		list+=",127.0.0.1:$port"
	done
	until notifyctl --context picture context check >/dev/null 2>&1; do sleep 0.5; done
	tm send-keys "clear; notifyctl --context picture load run $work/agents.yaml --mode context --agents ${list#,}; echo left with \$?" Enter
	await 120 'running'
	sleep 15
	kill -9 "${pids[1]}"
	await 60 'lost'
	tm send-keys 7
	sleep 3
	picture load-agents 1475 936
	await 120 'left with'
	screen | grep -q 'INCONCLUSIVE' || { screen; echo 'the verdict does not mention the killed agent' >&2; exit 1; }
	kill "${pids[0]}" "${pids[2]}" "$dev"
	wait 2>/dev/null || true
}
agents_picture
[ "${ONLY:-}" = agents ] && exit

tm send-keys "clear; notifyctl load run $work/picture.yaml; echo left with \$?" Enter
await 120 'running'
await 120 'steady'
tm send-keys '?' && await 20 'draw a line across the charts' && tm send-keys x
tm send-keys m && await 20 '^ mark:' && tm send-keys 'deploy of v2' Enter && await 20 'marked: deploy of v2'
await 120 'apns away'
tm send-keys Space && await 20 'frozen' && tm send-keys Space
tm send-keys 5 && await 20 'rejected' && tm send-keys 0
tm send-keys / 'channel:sms' Enter && await 20 'filter: channel:sms' && tm send-keys Escape
await 240 'campaign'
sleep 5
picture load-ui 1475 936
tm resize-window -x 80 -y 24
await 60 '5 ledger'
sleep 1
picture load-ui-small 752 480
tm resize-window -x 160 -y 48
await 300 'left with'
# At the end the panels disappear and the summary stays on the screen.
screen | grep -q '^load scenario=apns-away .*lost=0' || { screen; echo 'the summary did not stay on the screen' >&2; exit 1; }
screen | grep -q 'left with 99' || { screen; echo 'a missed threshold did not end in 99' >&2; exit 1; }
! screen | grep -q 'running' || { echo 'the panels stayed on the screen' >&2; exit 1; }
id=$(notifyctl load ls -o json --jq '.items[0].id')
shoot "$XDG_DATA_HOME/notifyctl/runs/$id/report.html" load-report 1100 1500

# A second run is stopped: by q, and by Ctrl-C.
for keys in 'q y' 'C-c'; do
	tm send-keys "clear; notifyctl load run $work/picture.yaml; echo left with \$?" Enter
	await 120 'steady'
	tm send-keys $keys
	await 120 'left with 130'
	screen | grep -q '^PARTIAL' || screen | grep -q '^load scenario=apns-away' || { screen; echo "no partial summary after $keys" >&2; exit 1; }
done
# A kept run is replayed.
tm send-keys "clear; notifyctl load view $id; echo left with \$?" Enter
await 60 'replay'
tm send-keys G && await 20 'done' && tm send-keys g && await 20 '0:00 of' && tm send-keys q && await 20 'left with 0'
# Output to a pipe has no escape sequences.
notifyctl load view "$id" | grep -q "$(printf '\033')" && { echo 'escape sequences in the output to a pipe' >&2; exit 1; }
echo "driven: panels, help, mark, freeze, filter, resize, q, Ctrl-C, replay"
