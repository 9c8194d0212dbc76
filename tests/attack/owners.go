package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// noteTo returns the body of a notification to a user.
func noteTo(user, text string) string {
	return fmt.Sprintf(`{"channel":"push","category":"transactional","to":{"user_id":%q},"content":{"title":"t","body":%q}}`, user, text)
}

// inAnHour adds a scheduled time, one hour from now, to the body of a notification.
func inAnHour(body string) string {
	return strings.TrimSuffix(body, "}") + fmt.Sprintf(`,"scheduled_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

// noAddr is the invalid address. With this argument, canary.firstSeen considers all addresses.
var noAddr netip.Addr

// belongings are the resources of one caller. Another caller must not reach them.
type belongings struct {
	note, fan, schedule, trigger, campaign string
	key                                    string // idempotency key of the notification in the field note
	secret                                 string // text of the notifications
}

// callerScopes has all scopes that a caller may have. The token of the attacker (mallory) has
// these scopes, too.
const callerScopes = "send read trigger users"

// createBelongings creates the resources of the victim (alice). It also returns alice's token.
func (r *world) createBelongings() (b belongings, token string) {
	const base = "https://hooks." + domain + "/"
	token = r.keys.token(r.mustCreateCaller(base), callerScopes)
	b = belongings{campaign: "cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RS", key: "alices-key", secret: "alices-secret-text"}
	post := func(path, body, field string, header map[string]string) (id string) {
		return r.must(request{method: "POST", url: path, token: token, body: body, header: header}).field(field)
	}
	b.note = post("/v1/notifications", noteTo("alices-user", b.secret), "notification_id", map[string]string{"Idempotency-Key": b.key})
	b.schedule = post("/v1/notifications", inAnHour(noteTo("alices-user", b.secret)), "notification_id", nil)
	fan := fmt.Sprintf(`{"channel":"push","category":"marketing","content":{"title":"t","body":%q},"campaign":%q,"part":0,"receivers":["alices-user","alices-other"]}`, b.secret, b.campaign)
	b.fan = strings.TrimSuffix(post("/v1/notifications:fanout", inAnHour(fan), "first_id", nil), "-0")
	b.trigger = post("/v1/triggers", strings.Replace(triggerOf(base), `"delay_seconds":0`, `"delay_seconds":3600`, 1), "trigger_id", nil)
	if b.note == "" || b.schedule == "" || b.fan == "" || b.trigger == "" {
		panic(fmt.Errorf("the API has not returned an id for each resource of alice: %+v", b))
	}
	return b, token
}

// ownerTries send requests of a caller (mallory) who knows the ids of another caller's resources
// (alice's). The server must not show or change these resources.
func ownerTries(r *world) {
	b, alice := r.createBelongings()
	mallory := r.keys.token("mallory", callerScopes)
	type look struct{ method, path, body string }
	var looks []look
	for _, id := range []string{b.note, b.schedule, b.fan, b.fan + "-0", b.fan + "-1", b.fan + "-99"} {
		looks = append(looks, look{"GET", "/v1/notifications/" + id, ""}, look{"GET", "/v1/notifications/" + id + "/timeline", ""}, look{"HEAD", "/v1/notifications/" + id, ""},
			look{"DELETE", "/v1/notifications/" + id, ""}, look{"PATCH", "/v1/notifications/" + id, `{"scheduled_at":"2030-01-01T00:00:00Z"}`},
			look{"GET", "/v1/notifications/" + strings.ToLower(id), ""}, look{"GET", "/v1/notifications/" + id + "?caller=" + alice[:3], ""})
	}
	for _, id := range []string{b.trigger, strings.ToLower(b.trigger)} {
		looks = append(looks, look{"GET", "/v1/triggers/" + id, ""}, look{"HEAD", "/v1/triggers/" + id, ""}, look{"DELETE", "/v1/triggers/" + id, ""}, look{"PATCH", "/v1/triggers/" + id, `{"delay_seconds":1}`})
	}
	looks = append(looks, look{"GET", "/v1/campaigns/" + b.campaign, ""}, look{"DELETE", "/v1/campaigns/" + b.campaign, ""}, look{"GET", "/v1/ops/dead-letters/" + b.note, ""})
	for _, l := range looks {
		r.tryRequest(l.method+" "+l.path, "requests a resource of another caller", request{method: l.method, url: l.path, token: mallory, body: l.body}, 400, 403, 404, 410, 422)
	}
	for _, path := range []string{
		"/v1/triggers", "/v1/triggers?caller=", "/v1/triggers?caller=alice", "/v1/schedules", "/v1/schedules?caller=", "/v1/schedules?caller=alice", "/v1/failed", "/v1/failed?caller=alice",
		"/v1/notifications", "/v1/notifications?caller=", "/v1/notifications?caller=alice", "/v1/notifications?user_id=alices-user", "/v1/users/alices-user/notifications?caller=alice", "/v1/users/alices-user/notifications",
	} {
		r.try("list "+path, "lists resources", "an answer without any resource of another caller", func(context.Context) string {
			a := r.ask(request{url: path, token: mallory})
			for _, of := range []string{b.note, b.schedule, b.fan, b.trigger, b.campaign, b.secret} {
				if strings.Contains(a.body, of) {
					return a.String()
				}
			}
			return ""
		})
	}
	r.keyTries(b, mallory)
	r.cursorTries(alice, mallory)
	// After these tries alice's resources must be unchanged.
	for _, path := range []string{"/v1/notifications/" + b.note, "/v1/notifications/" + b.schedule, "/v1/notifications/" + b.fan, "/v1/triggers/" + b.trigger} {
		before := r.must(request{url: path, token: alice})
		r.try("change of "+path, "has tried to change or cancel the resource", "that the resource is not cancelled and its due time is unchanged", func(context.Context) string {
			a := r.must(request{url: path, token: alice})
			return a.describeIf(strings.Contains(a.body, "CANCELLED") || a.field("fire_at") != before.field("fire_at") || a.field("scheduled_at") != before.field("scheduled_at"))
		})
	}
}

// keyTries use another caller's idempotency key and campaign.
func (r *world) keyTries(b belongings, mallory string) {
	r.try("idempotency key", "sends under the key of another caller's request", "an answer without that caller's id", func(context.Context) string {
		a := r.ask(request{method: "POST", url: "/v1/notifications", token: mallory, body: noteTo("alices-user", b.secret), header: map[string]string{"Idempotency-Key": b.key}})
		return a.describeIf(strings.Contains(a.body, b.note) || a.header.Get("Idempotency-Replayed") != "")
	})
	r.try("campaign part", "sends the part of another caller's campaign again", "an answer without that caller's id", func(context.Context) string {
		body := fmt.Sprintf(`{"channel":"push","category":"marketing","content":{"title":"t","body":"x"},"campaign":%q,"part":0,"receivers":["alices-user"]}`, b.campaign)
		a := r.ask(request{method: "POST", url: "/v1/notifications:fanout", token: mallory, body: body})
		return a.describeIf(strings.Contains(a.body, b.fan))
	})
}

// cursorTries request lists with cursors that belong to another caller or to another list, or that
// were changed.
func (r *world) cursorTries(alice, mallory string) {
	for _, body := range []string{"bb", "cc"} { // so that a page with limit=1 returns a cursor
		r.must(request{method: "POST", url: "/v1/notifications", token: alice, body: inAnHour(noteTo("alices-user", body))})
	}
	a := r.must(request{url: "/v1/schedules?limit=1", token: alice})
	cursor := a.field("cursor")
	if len(cursor) < 10 {
		panic(fmt.Errorf("the first page of the schedules has no cursor; the API %s", a))
	}
	last := cursor[:len(cursor)-1] + string("AB"[map[bool]int{true: 1, false: 0}[cursor[len(cursor)-1] == 'A']])
	for name, c := range map[string]string{"another's": cursor, "changed": last, "shorter": cursor[:len(cursor)-2], "longer": cursor + "AAAA", "an id": "ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS", "zeros": strings.Repeat("A", 60), "no text": "\x00", "a path": "../../x", "huge": strings.Repeat("A", 4000)} {
		for _, path := range []string{"/v1/schedules", "/v1/triggers", "/v1/failed", "/v1/users/alices-user/notifications"} {
			r.tryRequest("cursor "+name+" at "+path, "continues a listing with this cursor", request{url: path + "?cursor=" + escape(c), token: mallory}, 400, 422)
		}
	}
}

// namespaceTries send requests with a token that may only use users whose ids begin with "shop:".
func namespaceTries(r *world) {
	token := r.keys.signToken("ES256", r.keys.own, nil, withChanges(claimsOf("shop", callerScopes), map[string]any{"users": "shop:"}))
	r.must(request{method: "PUT", url: "/v1/users/shop:ann", token: token, body: `{}`})
	for _, user := range []string{"bank:ann", "shop", "shopping:ann", "Shop:ann", "%20shop:ann", "bank:shop:ann", "shop%253Aann", "shop;ann", "x", ".shop:ann", "..%2fshop:ann"} {
		for _, l := range []struct{ method, path, body string }{
			{"GET", "/v1/users/" + user, ""}, {"PUT", "/v1/users/" + user, "{}"}, {"GET", "/v1/users/" + user + "/notifications", ""}, {"HEAD", "/v1/users/" + user, ""},
		} {
			r.tryRequest(l.method+" "+l.path, "asks for a user of another namespace", request{method: l.method, url: l.path, token: token, body: l.body}, 400, 403, 404, 422)
		}
	}
	for _, user := range []string{"bank:ann", "shop", "Shop:ann", " shop:ann", "\u200bshop:ann"} {
		r.tryRequest("send to "+fmt.Sprintf("%q", user), "sends to a user of another namespace", request{method: "POST", url: "/v1/notifications", token: token, body: noteTo(user, "x")}, 400, 403, 422)
		for _, body := range []struct{ kind, path, text string }{
			{"batch", "/v1/notifications:batch", "[" + noteTo(user, "x") + "," + noteTo("shop:ann", "x") + "]"},
			{"fan-out", "/v1/notifications:fanout", fmt.Sprintf(`{"channel":"push","category":"marketing","content":{"title":"t","body":"x"},"receivers":[%q,"shop:ann"]}`, user)},
		} {
			r.try(fmt.Sprintf("%s with %q", body.kind, user), "sends to this user and to a user of its own namespace", "an answer of 4xx, or an answer that accepts only its own user", func(context.Context) string {
				a := r.ask(request{method: "POST", url: body.path, token: token, body: body.text})
				return a.describeIf(a.status/100 != 4 && !strings.Contains(a.body, `"accepted":1`))
			})
		}
	}
}
