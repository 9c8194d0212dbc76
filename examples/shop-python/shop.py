"""A shop that uses notifyd. It sends, reacts to failures, and receives triggers.

  POST /orders {"id", "user", "remind_in_seconds"}   sends an SMS now, and plans a reminder
  POST /hooks/reminder                               notifyd calls it when the reminder is due

It follows its feed of failed notifications, and sends by email what failed by SMS. It needs
Python 3.9 or later and nothing else. ../README.md says how to run it.
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import pathlib
import threading
import time
import urllib.error
import urllib.request

NOTIFYD = os.environ["NOTIFYD_URL"]
TOKEN_FILE = pathlib.Path(os.environ["NOTIFYD_TOKEN_FILE"])
SECRET = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
STATE = pathlib.Path(os.environ["SHOP_STATE"])  # a file: how far the failed feed was read
ATTEMPTS = 8


class Refused(Exception):
    """notifyd refused a request. Sending the same request again does not help."""

    def __init__(self, problem):
        super().__init__(f"{problem.get('code')}: {problem.get('detail')}")
        self.code = problem.get("code")


def call(method, path, body=None, key=None):
    """Send one request to notifyd and return its JSON answer.

    It repeats a request that got no answer, 429 or 5xx, after Retry-After or a growing pause.
    The Idempotency-Key makes that safe: notifyd stores a request with the same key once.
    """
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    data = None if body is None else json.dumps(body).encode()
    for attempt in range(ATTEMPTS):
        headers["Authorization"] = "Bearer " + TOKEN_FILE.read_text().strip()  # tokens are renewed
        request = urllib.request.Request(NOTIFYD + path, data, headers, method=method)
        pause = 0.2 * 2**attempt
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 429 and error.code < 500:
                raise Refused(json.load(error)) from None
            pause = float(error.headers.get("Retry-After", pause))
        except OSError:  # no answer
            pass
        time.sleep(pause)
    raise OSError(f"notifyd did not take {method} {path} in {ATTEMPTS} attempts")


def order(order_id, user, remind_in_seconds, own_url):
    """Tell a user of an order, and plan a reminder. The same order twice is one order."""
    sent = call("POST", "/v1/notifications", {
        "channel": "sms", "category": "alert", "to": {"user_id": user},
        "content": {"body": f"Your order {order_id} is on its way."},
    }, key=f"order-{order_id}")
    planned = call("POST", "/v1/triggers", {
        "callback_url": own_url + "/hooks/reminder", "delay_seconds": remind_in_seconds,
        "payload": {"order": order_id, "user": user},
    }, key=f"reminder-{order_id}")
    return {"notification_id": sent["notification_id"], "trigger_id": planned["trigger_id"]}


def verified(headers, body):
    """Report whether notifyd made this call: Standard Webhooks, https://www.standardwebhooks.com."""
    call_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdigit() or abs(time.time() - int(at)) > 300:  # an old call that somebody recorded
        return False
    signed = f"{call_id}.{at}.".encode() + body
    want = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    # After a change of the secret there are two signatures for a while.
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest("v1," + want, one) for one in given)


def remind(call_id, payload):
    """React to a trigger. notifyd may call twice with one id; the key keeps that one push."""
    call("POST", "/v1/notifications", {
        "channel": "push", "category": "transactional", "to": {"user_id": payload["user"]},
        "content": {"title": "Your order", "body": f"Did order {payload['order']} arrive?"},
    }, key=f"reminded-{call_id}")


def follow_failures():
    """Read the failed feed for ever. The place is kept after each page, so nothing is missed."""
    after = int(STATE.read_text()) if STATE.exists() else 0
    while True:
        try:
            page = call("GET", f"/v1/failed?after={after}&wait=20s")
        except OSError as error:  # notifyd is away: go on when it is back
            print("the failed feed:", error, flush=True)
            continue
        for failed in page["items"]:
            if failed["channel"] == "sms":
                fall_back(failed)
        after = page["after"]
        partial = STATE.with_suffix(".new")
        partial.write_text(str(after))
        partial.replace(STATE)


def fall_back(failed):
    """Send by email what failed by SMS. notifyd still has the text."""
    failed_id = failed["notification_id"]
    content = call("GET", f"/v1/notifications/{failed_id}/content")["content"]
    try:
        call("POST", "/v1/notifications", {
            "channel": "email", "category": failed["category"], "to": {"user_id": failed["user_id"]},
            "content": {"title": "We could not reach your phone", "body": content["body"]},
        }, key=f"fallback-{failed_id}")
    except Refused as refused:
        print(f"{failed_id} failed by SMS, and email is refused: {refused}", flush=True)


class Shop(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 20))
        try:
            if self.path == "/orders":
                o = json.loads(body)
                self.answer(200, order(o["id"], o["user"], o["remind_in_seconds"], self.server.url))
            elif self.path != "/hooks/reminder":
                self.answer(404)
            elif not verified(self.headers, body):
                self.answer(401)
            else:
                remind(self.headers["webhook-id"], json.loads(body)["payload"])
                self.answer(204)
        except (Refused, KeyError, ValueError) as error:
            self.answer(422, {"error": str(error)})
        except OSError as error:  # notifyd calls again
            self.answer(503, {"error": str(error)})

    def answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("SHOP_PORT", "0"))), Shop)
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=follow_failures, daemon=True).start()
    print("listening on", server.url, flush=True)
    server.serve_forever()
