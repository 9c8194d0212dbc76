package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Post sends a body as it is to one of the sending routes, e.g.
// "/v1/notifications:batch": for callers that build their bodies themselves.
// Without a key it is not repeated after an unclear failure.
func (cl *Client) Post(ctx context.Context, path, contentType string, body []byte, key string) (Reply, error) {
	return cl.do(ctx, call{method: http.MethodPost, path: path, contentType: contentType, body: body, key: key, repeatable: key != ""}, nil)
}

// Send sends one notification. key is its Idempotency-Key; empty: none.
func (cl *Client) Send(ctx context.Context, n Notification, key string) (out Accepted, err error) {
	reply, err := cl.write(ctx, call{method: http.MethodPost, path: "/v1/notifications", key: key, repeatable: key != ""}, n, &out)
	if err == nil {
		out.Replayed = reply.Replayed
	}
	return out, err
}

// SendBatch sends different notifications in one request. The error is about
// the request; what is wrong with an item stands in its place in the result.
func (cl *Client) SendBatch(ctx context.Context, ns []Notification, key string) (out BatchResult, err error) {
	err = cl.post(ctx, "/v1/notifications:batch", ns, key, key != "", &out)
	return out, err
}

// Fanout sends one content to many receivers in one request. A part of a
// campaign is repeatable without a key.
func (cl *Client) Fanout(ctx context.Context, f Fanout, key string) (out FanoutResult, err error) {
	err = cl.post(ctx, "/v1/notifications:fanout", f, key, key != "" || f.Campaign != "", &out)
	return out, err
}

// Notification returns where a notification stands.
func (cl *Client) Notification(ctx context.Context, id string) (Status, error) {
	return fetch[Status](ctx, cl, "/v1/notifications/"+url.PathEscape(id), nil)
}

// FullAddress asks for addresses that are not masked.
const FullAddress = "full"

// NotificationContent returns what a notification says and where it was sent, for the
// caller that sent it and for operators, whose look is recorded. Addresses are masked
// unless address is FullAddress.
func (cl *Client) NotificationContent(ctx context.Context, id, address string) (NotificationContent, error) {
	q := url.Values{}
	set(q, "address", address)
	return fetch[NotificationContent](ctx, cl, "/v1/notifications/"+url.PathEscape(id)+"/content", q)
}

// Page asks for one page of counts: at most Limit receivers (0: the server's
// default) from After on, which is the Next of the page before.
type Page struct {
	Limit int
	After string
}

// Summary counts the receivers of a fan-out request (an id without an index).
func (cl *Client) Summary(ctx context.Context, id string, p Page) (Summary, error) {
	return fetch[Summary](ctx, cl, "/v1/notifications/"+url.PathEscape(id), p.query())
}

// Timeline returns what became of a notification.
func (cl *Client) Timeline(ctx context.Context, id string) (Timeline, error) {
	return fetch[Timeline](ctx, cl, "/v1/notifications/"+url.PathEscape(id)+"/timeline", nil)
}

// Cancel stops what has not started of a notification, a fan-out request or
// one receiver of it.
func (cl *Client) Cancel(ctx context.Context, id string) (Cancelled, error) {
	return send[Cancelled](ctx, cl, http.MethodDelete, "/v1/notifications/"+url.PathEscape(id), nil, true)
}

// Reschedule makes a scheduled notification, or a whole fan-out, due at another
// time; one that has passed means now. notify.KindConflict where it is too late.
func (cl *Client) Reschedule(ctx context.Context, id string, at time.Time) (Scheduled, error) {
	return send[Scheduled](ctx, cl, http.MethodPatch, "/v1/notifications/"+url.PathEscape(id), struct {
		ScheduledAt time.Time `json:"scheduled_at"`
	}{at.UTC()}, true)
}

// ScheduleQuery selects schedules; empty fields select all. Caller is for
// operators.
type ScheduleQuery struct {
	Status string // SCHEDULED or CANCELLED
	User   string // whom they are for; fan-outs are for nobody in particular
	Caller string
	Cursor string
	Limit  int
}

// Schedules returns one page of what waits for its time, newest request first.
func (cl *Client) Schedules(ctx context.Context, f ScheduleQuery) (ScheduledPage, error) {
	q := url.Values{}
	set(q, "status", f.Status)
	set(q, "user", f.User)
	set(q, "caller", f.Caller)
	set(q, "cursor", f.Cursor)
	setInt(q, "limit", int64(f.Limit))
	return fetch[ScheduledPage](ctx, cl, "/v1/schedules", q)
}

// Forecast says how much becomes due from from until to (at most 7 days later),
// by minute and channel. Zero times: the next hour. For operators.
func (cl *Client) Forecast(ctx context.Context, from, to time.Time) (Forecast, error) {
	q := url.Values{}
	setTime(q, "from", from)
	setTime(q, "to", to)
	return fetch[Forecast](ctx, cl, "/v1/schedules/forecast", q)
}

// Campaign returns a campaign and counts its receivers.
func (cl *Client) Campaign(ctx context.Context, id string, p Page) (Summary, error) {
	return fetch[Summary](ctx, cl, "/v1/campaigns/"+url.PathEscape(id), p.query())
}

// CancelCampaign stops what has not started of a campaign, its later parts too.
func (cl *Client) CancelCampaign(ctx context.Context, id string) (Cancelled, error) {
	return send[Cancelled](ctx, cl, http.MethodDelete, "/v1/campaigns/"+url.PathEscape(id), nil, true)
}

// NotificationQuery selects notifications; empty fields select all.
type NotificationQuery struct {
	User, Channel, Status, Template, Campaign string
	Code                                      string    // why it stands so now, e.g. twilio_21211
	Caller                                    string    // for operators
	Since, Until                              time.Time // accepted in [Since, Until)
	Cursor                                    string
	Limit                                     int
}

// Notifications returns one page of what was sent, newest first. A page may hold fewer
// than Limit, even none, and not be the last: that one has no cursor. Without a user,
// the server must keep its history by itself; else the error has the code
// list_needs_user.
func (cl *Client) Notifications(ctx context.Context, f NotificationQuery) (UserHistory, error) {
	q := url.Values{}
	for name, v := range map[string]string{
		"channel": f.Channel, "status": f.Status, "caller": f.Caller, "template": f.Template, "campaign": f.Campaign, "code": f.Code, "cursor": f.Cursor,
	} {
		set(q, name, v)
	}
	setTime(q, "since", f.Since)
	setTime(q, "until", f.Until)
	setInt(q, "limit", int64(f.Limit))
	path := "/v1/notifications"
	if f.User != "" {
		path = "/v1/users/" + url.PathEscape(f.User) + "/notifications"
	}
	return fetch[UserHistory](ctx, cl, path, q)
}

// UserNotifications returns one page of a user's notifications, newest first.
// cursor is empty for the first page; limit 0 is the server's default.
func (cl *Client) UserNotifications(ctx context.Context, user, cursor string, limit int) (UserHistory, error) {
	return cl.Notifications(ctx, NotificationQuery{User: user, Cursor: cursor, Limit: limit})
}

// User returns what a user set.
func (cl *Client) User(ctx context.Context, user string) (User, error) {
	return fetch[User](ctx, cl, "/v1/users/"+url.PathEscape(user), nil)
}

// PutUser stores what a user set; u.Version other than 0 must be the stored
// one, else the result is notify.KindConflict.
func (cl *Client) PutUser(ctx context.Context, u User) (UserVersion, error) {
	return send[UserVersion](ctx, cl, http.MethodPut, "/v1/users/"+url.PathEscape(u.UserID), u, u.Version == 0)
}

// Failed returns the caller's failed notifications behind after. Where there
// are none, the server waits up to wait (at most 30 s) for one.
func (cl *Client) Failed(ctx context.Context, after uint64, wait time.Duration, limit int) (FailedPage, error) {
	q := url.Values{}
	setInt(q, "after", int64(after))
	setInt(q, "limit", int64(limit))
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	return fetch[FailedPage](ctx, cl, "/v1/failed", q)
}

// DeadLetters returns one page of the dead letters of every caller that f selects, whose
// IDs do not count. cursor is empty for the first page; limit 0 is the server's default.
func (cl *Client) DeadLetters(ctx context.Context, f LetterFilter, cursor string, limit int) (DeadLetterPage, error) {
	q := f.Query()
	set(q, "cursor", cursor)
	setInt(q, "limit", int64(limit))
	return fetch[DeadLetterPage](ctx, cl, "/v1/ops/dead-letters", q)
}

// DeadLetter returns one dead letter of the latest epoch.
func (cl *Client) DeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return fetch[DeadLetter](ctx, cl, "/v1/ops/dead-letters/"+url.PathEscape(id), nil)
}

// Doctor returns the server's findings about itself.
func (cl *Client) Doctor(ctx context.Context) ([]Finding, error) {
	return items[Finding](ctx, cl, "/v1/ops/doctor")
}

// Lag returns how far each group is behind its topic.
func (cl *Client) Lag(ctx context.Context) ([]GroupLag, error) {
	return items[GroupLag](ctx, cl, "/v1/ops/lag")
}

// items returns the items of a list that comes whole.
func items[T any](ctx context.Context, cl *Client, path string) ([]T, error) {
	out, err := fetch[List[T]](ctx, cl, path, nil)
	return out.Items, err
}

// Debug returns what the process tells of itself for a debug bundle.
func (cl *Client) Debug(ctx context.Context) (Debug, error) {
	return fetch[Debug](ctx, cl, "/v1/ops/debug", nil)
}

// Ready is nil when the server takes requests.
func (cl *Client) Ready(ctx context.Context) error { return cl.get(ctx, "/readyz", nil, nil) }

// Tail calls fn with the outcomes that f takes as they happen, and with events of the
// other types, until ctx ends, fn returns an error, or the server closes the
// stream (nil). An operator may name another caller in f, or "*" for all; empty is
// the token's own. The HTTP client must have no overall timeout.
func (cl *Client) Tail(ctx context.Context, f TailFilter, fn func(Event) error) error {
	q := url.Values{}
	set(q, "caller", f.Caller)
	set(q, "channel", f.Channel)
	set(q, "category", f.Category)
	set(q, "status", f.Status)
	stream, err := cl.stream(ctx, "/v1/tail", q)
	if err != nil {
		return err
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "a line of the stream is not the JSON expected", Err: err}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Backup writes everything the server keeps to w, in the form that "notifyd
// restore" reads, and returns how many bytes that were. The HTTP client must
// have no overall timeout. A backup that broke off is an error here, and lacks
// files that its manifest lists.
func (cl *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	stream, err := cl.stream(ctx, "/v1/ops/backup", nil)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	n, err := io.Copy(w, stream)
	return n, err
}

// stream asks for an answer that is read as it comes. The caller closes it.
func (cl *Client) stream(ctx context.Context, path string, q url.Values) (*answer, error) {
	resp, err := cl.roundTrip(ctx, call{method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return &answer{resp.Body, ctx}, nil
	}
	defer resp.Body.Close()
	body, err := readBody(resp)
	if err != nil {
		return nil, connError(ctx, err)
	}
	return nil, problemOf(resp, body)
}

// answer tells errors of the connection from those of who takes the body.
type answer struct {
	io.ReadCloser
	ctx context.Context
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = connError(a.ctx, err)
	}
	return n, err
}

func (cl *Client) get(ctx context.Context, path string, q url.Values, out any) error {
	_, err := cl.do(ctx, call{method: http.MethodGet, path: path, query: q, repeatable: true}, out)
	return err
}

func (cl *Client) post(ctx context.Context, path string, in any, key string, repeatable bool, out any) error {
	_, err := cl.write(ctx, call{method: http.MethodPost, path: path, key: key, repeatable: repeatable}, in, out)
	return err
}

// fetch returns what is at path.
func fetch[T any](ctx context.Context, cl *Client, path string, q url.Values) (out T, err error) {
	err = cl.get(ctx, path, q, &out)
	return out, err
}

// send sends in to path, and returns the answer.
func send[T any](ctx context.Context, cl *Client, method, path string, in any, repeatable bool) (out T, err error) {
	_, err = cl.write(ctx, call{method: method, path: path, repeatable: repeatable}, in, &out)
	return out, err
}

// write sends c with in as its JSON body; nil: without a body.
func (cl *Client) write(ctx context.Context, c call, in, out any) (reply Reply, err error) {
	if in != nil {
		c.contentType = TypeJSON
		if c.body, err = encode(in); err != nil {
			return reply, err
		}
	}
	return cl.do(ctx, c, out)
}

func (p Page) query() url.Values {
	q := url.Values{}
	setInt(q, "limit", int64(p.Limit))
	set(q, "after", p.After)
	return q
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: CodeMalformed, Msg: "the request cannot be written as JSON", Err: err}
	}
	return b, nil
}

func set(q url.Values, name, v string) {
	if v != "" {
		q.Set(name, v)
	}
}

func setInt(q url.Values, name string, v int64) {
	if v != 0 {
		q.Set(name, strconv.FormatInt(v, 10))
	}
}

func setTime(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}
