/**
 * A shop that uses notifyd. It sends, reacts to failures, and receives triggers.
 *
 *   POST /orders {"id", "user", "remind_in_seconds"}   sends an SMS now, and plans a reminder
 *   POST /hooks/reminder                               notifyd calls it when the reminder is due
 *
 * It follows its feed of failed notifications, and sends by email what failed by SMS. It needs
 * Node.js 18 or later and no library. ../README.md says how to run it.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync, renameSync, writeFileSync, existsSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set`);
  return value;
}

const notifyd = setting("NOTIFYD_URL");
const tokenFile = setting("NOTIFYD_TOKEN_FILE");
const secret = Buffer.from(setting("WEBHOOK_SECRET").replace(/^whsec_/, ""), "base64");
const stateFile = setting("SHOP_STATE"); // how far the failed feed was read
const attempts = 8;

interface Accepted { notification_id: string }
interface Planned { trigger_id: string }
interface Sent { content: { body: string } }
interface Failed { notification_id: string; channel: string; category: string; user_id: string }
interface FailedPage { items: Failed[]; after: number }
interface Order { id: string; user: string; remind_in_seconds: number }
interface Reminder { order: string; user: string }

/** notifyd refused a request. Sending the same request again does not help. */
class Refused extends Error {}

/**
 * Sends one request to notifyd and returns its JSON answer. It repeats a request that got no
 * answer, 429 or 5xx, after Retry-After or a growing pause. The Idempotency-Key makes that
 * safe: notifyd stores a request with the same key once.
 */
async function call<T>(method: string, path: string, body?: unknown, key?: string): Promise<T> {
  for (let attempt = 0; attempt < attempts; attempt++) {
    let pause = 200 * 2 ** attempt; // milliseconds
    const headers: Record<string, string> = {
      Authorization: `Bearer ${readFileSync(tokenFile, "utf8").trim()}`, // tokens are renewed
      "Content-Type": "application/json",
    };
    if (key !== undefined) headers["Idempotency-Key"] = key;
    let answer: Response | undefined;
    try {
      answer = await fetch(notifyd + path, {
        method, headers, signal: AbortSignal.timeout(60_000),
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (answer.ok) return (await answer.json()) as T;
    } catch {
      // no answer, or one that broke off
    }
    if (answer !== undefined && answer.status < 500 && answer.status !== 429) {
      const problem = (await answer.json()) as { code: string; detail: string };
      throw new Refused(`${problem.code}: ${problem.detail}`);
    }
    const after = Number(answer?.headers.get("Retry-After") ?? NaN);
    if (after > 0) pause = after * 1000;
    await sleep(pause);
  }
  throw new Error(`notifyd did not take ${method} ${path} in ${attempts} attempts`);
}

/** Tells a user of an order, and plans a reminder. The same order twice is one order. */
async function order(o: Order, ownURL: string): Promise<Accepted & Planned> {
  const sent = await call<Accepted>("POST", "/v1/notifications", {
    channel: "sms", category: "alert", to: { user_id: o.user },
    content: { body: `Your order ${o.id} is on its way.` },
  }, `order-${o.id}`);
  const planned = await call<Planned>("POST", "/v1/triggers", {
    callback_url: `${ownURL}/hooks/reminder`, delay_seconds: o.remind_in_seconds,
    payload: { order: o.id, user: o.user },
  }, `reminder-${o.id}`);
  return { notification_id: sent.notification_id, trigger_id: planned.trigger_id };
}

/** Reports whether notifyd made this call: Standard Webhooks, https://www.standardwebhooks.com. */
function verified(request: IncomingMessage, body: Buffer): boolean {
  const id = header(request, "webhook-id");
  const at = header(request, "webhook-timestamp");
  if (!/^\d+$/.test(at) || Math.abs(Date.now() / 1000 - Number(at)) > 300) return false; // an old call that somebody recorded
  const want = Buffer.from("v1," + createHmac("sha256", secret).update(`${id}.${at}.`).update(body).digest("base64"));
  // After a change of the secret there are two signatures for a while.
  return header(request, "webhook-signature").split(" ").some((given) => {
    const one = Buffer.from(given);
    return one.length === want.length && timingSafeEqual(one, want);
  });
}

function header(request: IncomingMessage, name: string): string {
  const value = request.headers[name];
  return typeof value === "string" ? value : "";
}

/** Reacts to a trigger. notifyd may call twice with one id; the key keeps that one push. */
async function remind(callID: string, r: Reminder): Promise<void> {
  await call("POST", "/v1/notifications", {
    channel: "push", category: "transactional", to: { user_id: r.user },
    content: { title: "Your order", body: `Did order ${r.order} arrive?` },
  }, `reminded-${callID}`);
}

/** Reads the failed feed for ever. The place is kept after each page, so nothing is missed. */
async function followFailures(): Promise<never> {
  let after = existsSync(stateFile) ? Number(readFileSync(stateFile, "utf8")) : 0;
  for (;;) {
    let page: FailedPage;
    try {
      page = await call<FailedPage>("GET", `/v1/failed?after=${after}&wait=20s`);
    } catch (error) {
      if (error instanceof Refused) throw error;
      console.log("the failed feed:", String(error)); // notifyd is away: go on when it is back
      continue;
    }
    for (const failed of page.items) {
      if (failed.channel === "sms") await fallBack(failed);
    }
    after = page.after;
    writeFileSync(stateFile + ".new", String(after));
    renameSync(stateFile + ".new", stateFile);
  }
}

/** Sends by email what failed by SMS. notifyd still has the text. */
async function fallBack(failed: Failed): Promise<void> {
  const sent = await call<Sent>("GET", `/v1/notifications/${failed.notification_id}/content`);
  try {
    await call("POST", "/v1/notifications", {
      channel: "email", category: failed.category, to: { user_id: failed.user_id },
      content: { title: "We could not reach your phone", body: sent.content.body },
    }, `fallback-${failed.notification_id}`);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    console.log(`${failed.notification_id} failed by SMS, and email is refused: ${error.message}`);
  }
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request) {
    size += (part as Buffer).length;
    if (size > 1 << 20) throw new Refused("the body is too large");
    parts.push(part as Buffer);
  }
  return Buffer.concat(parts);
}

async function answer(request: IncomingMessage, response: ServerResponse, ownURL: string): Promise<void> {
  try {
    const body = await bodyOf(request);
    if (request.method !== "POST" || (request.url !== "/orders" && request.url !== "/hooks/reminder")) {
      response.writeHead(404).end();
    } else if (request.url === "/orders") {
      const made = await order(JSON.parse(body.toString()) as Order, ownURL);
      response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(made));
    } else if (!verified(request, body)) {
      response.writeHead(401).end();
    } else {
      const { payload } = JSON.parse(body.toString()) as { payload: Reminder };
      await remind(header(request, "webhook-id"), payload);
      response.writeHead(204).end();
    }
  } catch (error) {
    // The same request again cannot help after 422. After 503 notifyd calls again.
    const final = error instanceof Refused || error instanceof SyntaxError || error instanceof TypeError;
    response.writeHead(final ? 422 : 503).end(String(error));
  }
}

const server = createServer((request, response) => {
  void answer(request, response, ownURL());
});

function ownURL(): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

server.listen(Number(process.env.SHOP_PORT ?? 0), "127.0.0.1", () => {
  console.log("listening on", ownURL());
  void followFailures();
});
