#!/usr/bin/env bash
# Takes a picture of notifyctl ui:  ui-picture.sh OUT.png
# It needs tmux, chromium (CHROMIUM names another program), and a notifyd dev that is the
# current context of notifyctl. It gives that server a minute of work, some of which fails
# for good.
set -euo pipefail
out=$1 chromium=${CHROMIUM:-chromium} here=$(cd "$(dirname "$0")" && pwd) work=$(mktemp -d) sending=
command -v tmux >/dev/null || { echo "no tmux: install it" >&2; exit 1; }
tm() { tmux -S "$work/tmux" -f /dev/null "$@"; }
trap '[ -z "$sending" ] || kill "$sending" 2>/dev/null || true; tm kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

batch() { # channel category count content
	for i in $(seq "$3"); do
		printf '{"channel":"%s","category":"%s","to":{"user_id":"user-%03d"},"content":%s}\n' "$1" "$2" $((i % 100)) "$4"
	done
}
batch email marketing 60 '{"template":"spring"}' >"$work/spring.ndjson"
for i in 4 11 11 26 26 26 43 58; do
	notifyctl schedule --in "${i}m" --channel push --user ann --body 'Your table is ready' -q >/dev/null
done
notifyctl sim rule add error --provider sendgrid --template spring --status 400 -q >/dev/null
notifyctl send -f "$work/spring.ndjson" -q >/dev/null
(
	for i in $(seq 45); do # each batch differs: an equal batch would count as a repeat of the same request
		{
			batch push transactional $((40 + i * 37 % 90)) "{\"title\":\"Your order\",\"body\":\"Order $i is on its way.\"}"
			batch sms otp 12 "{\"body\":\"Your code is $((482913 + i))\"}"
			batch email alert 25 "{\"title\":\"New sign-in\",\"body\":\"Was it you? ($i)\"}"
		} >"$work/some.ndjson"
		notifyctl send -f "$work/some.ndjson" -q || true
		sleep 1
	done
) >/dev/null 2>&1 &
sending=$!
until [ "$(notifyctl dlq stats --template spring -o json --jq .total)" -ge 60 ]; do sleep 0.2; done
notifyctl dlq replay --template spring --yes --canary 5 -q >/dev/null 2>&1 || true # the template is still broken, so the canary's guard stops the replay
sleep 45

tm new-session -d -x 110 -y 34 'LC_ALL=C.UTF-8 TERM=xterm-256color notifyctl ui'
for _ in $(seq 100); do
	sleep 0.2
	tm capture-pane -p | grep -q 'checks are ok' && break
done
sleep 2
tm capture-pane -e -p | awk -f "$here/screen.awk" >"$work/screen.html"
tm send-keys q
"$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$work/chromium" --hide-scrollbars \
	--window-size=1030,676 --screenshot="$out" "file://$work/screen.html" >/dev/null 2>&1
echo "$out"
