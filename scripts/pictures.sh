#!/usr/bin/env bash
# Makes the pictures of the README in docs/img from real output. It needs chromium (CHROMIUM
# names another program), tmux and Go. It builds notifyd and notifyctl first.
set -euo pipefail
cd "$(dirname "$0")/.."
chromium=${CHROMIUM:-chromium}
command -v "$chromium" >/dev/null || { echo "no $chromium: install it, or name one with CHROMIUM" >&2; exit 1; }
make --no-print-directory build >/dev/null
out=$PWD/docs/img work=$(mktemp -d) server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$work"' EXIT
export XDG_CONFIG_HOME=$work/config XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data PATH=$PWD/bin:$PATH
notifyd dev --ephemeral --port 0 >"$work/dev.out" &
server=$!
until grep -q '^Try:' "$work/dev.out"; do kill -0 "$server"; sleep 0.1; done

run() {
	local line='$' arg
	for arg in "$@"; do case $arg in *[!A-Za-z0-9_./:=@-]*) line+=" '$arg'" ;; *) line+=" $arg" ;; esac; done
	printf '%s\n' "$line"
	"$@" 2>&1
}
{
	run notifyctl send --channel push --user ann --title 'Your order' --body 'It is on its way.' --wait
	run notifyctl send --channel sms --category otp --user ann --body 'Your code is {{code}}' --var code=482913 --ttl 5m -q
	run notifyctl send --channel email --category alert --user ann --title 'New sign-in' --body 'Was it you?' -q
	until [ "$(notifyctl sim summary -o json --jq .ids)" = 3 ]; do sleep 0.1; done
	sleep 1 # receipts
	run notifyctl ls --user ann
	run notifyctl why "$(notifyctl ls --user ann -o json --jq '.items[1].notification_id')"
} >"$work/session.txt"
awk -f scripts/term.awk "$work/session.txt" >"$out/session.svg"

notifyctl send --channel push --user bob --title 'New sign-in' --body 'Was it you, {{name}}?' --var name=Bob --category alert -q
notifyctl send --channel email --category alert --user cleo --title 'Your receipt' --body 'Thank you for your order.' -q
until [ "$(notifyctl sim summary -o json --jq .ids)" = 5 ]; do sleep 0.1; done
inbox=$(awk '$1 == "Inbox" { print $2 }' "$work/dev.out")
"$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$work/chromium" --hide-scrollbars \
	--window-size=900,640 --screenshot="$out/inbox.png" "$inbox" >/dev/null 2>&1

scripts/ui-picture.sh "$out/ui.png"
scripts/load-picture.sh "$out"

# The operator page, from another server with an afternoon of failures.
NOTIFY_PICTURES=$out CHROMIUM=$chromium scripts/browser.sh -run TestPictures
cat "$work/session.txt"
