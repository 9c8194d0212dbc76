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

// Post sends an unchanged body to one of the sending routes, such as "/v1/notifications:batch". It
// is for callers that build their bodies themselves. If it is unknown whether the server accepted
// the request, Post repeats it only if there is a key.
func (cl *Client) Post(ctx context.Context, path, contentType string, body []byte, key string) (Reply, error) {
	return cl.do(ctx, call{method: http.MethodPost, path: path, contentType: contentType, body: body, key: key, repeatable: key != ""}, nil)
}

// Send sends one notification. The parameter key is its Idempotency-Key. If key is empty, the
// request has no Idempotency-Key.
func (cl *Client) Send(ctx context.Context, n Notification, key string) (out Accepted, err error) {
	reply, err := cl.write(ctx, call{method: http.MethodPost, path: "/v1/notifications", key: key, repeatable: key != ""}, n, &out)
	if err == nil {
		out.Replayed = reply.Replayed
	}
	return out, err
}

// SendBatch sends different notifications in one request. The error that SendBatch returns is about
// the whole request. The error of a single item is at the item's place in the result.
func (cl *Client) SendBatch(ctx context.Context, ns []Notification, key string) (out BatchResult, err error) {
	err = cl.post(ctx, "/v1/notifications:batch", ns, key, key != "", &out)
	return out, err
}

// Fanout sends one content to many receivers in one request. It repeats a part of a campaign even
// without a key, because (campaign, part) is its key.
func (cl *Client) Fanout(ctx context.Context, f Fanout, key string) (out FanoutResult, err error) {
	err = cl.post(ctx, "/v1/notifications:fanout", f, key, key != "" || f.Campaign != "", &out)
	return out, err
}

// Notification returns the status of a notification.
func (cl *Client) Notification(ctx context.Context, id string) (Status, error) {
	return getJSON[Status](ctx, cl, "/v1/notifications/"+url.PathEscape(id), nil)
}

// FullAddress is a value for the parameter address of NotificationContent. With it the server does
// not mask the addresses.
const FullAddress = "full"

// NotificationContent returns the content and the addresses of a notification. Only the caller that
// sent the notification and operators may read it. If an operator reads it, the server records the
// access in the audit log. Addresses are masked unless the parameter address is FullAddress.
func (cl *Client) NotificationContent(ctx context.Context, id, address string) (NotificationContent, error) {
	q := url.Values{}
	setText(q, "address", address)
	return getJSON[NotificationContent](ctx, cl, "/v1/notifications/"+url.PathEscape(id)+"/content", q)
}

// Page selects one page of counts. Limit is the largest number of receivers of the page (0: the
// server's default). After is where the page begins: the field Next of the previous page, or empty
// for the first page.
type Page struct {
	Limit int
	After string
}

// Summary counts the receivers of a fan-out request (an id without an index).
func (cl *Client) Summary(ctx context.Context, id string, p Page) (Summary, error) {
	return getJSON[Summary](ctx, cl, "/v1/notifications/"+url.PathEscape(id), p.query())
}

// Timeline returns the history of a notification.
func (cl *Client) Timeline(ctx context.Context, id string) (Timeline, error) {
	return getJSON[Timeline](ctx, cl, "/v1/notifications/"+url.PathEscape(id)+"/timeline", nil)
}

// Cancel cancels a notification, a whole fan-out request, or one receiver of a fan-out. It has no
// effect on calls to a provider that have already started.
func (cl *Client) Cancel(ctx context.Context, id string) (Cancelled, error) {
	return sendJSON[Cancelled](ctx, cl, http.MethodDelete, "/v1/notifications/"+url.PathEscape(id), nil, true)
}

// Reschedule moves a scheduled notification, or a whole fan-out, to another time. A time in the
// past means now. Reschedule returns notify.KindConflict if it is too late to move.
func (cl *Client) Reschedule(ctx context.Context, id string, at time.Time) (Scheduled, error) {
	return sendJSON[Scheduled](ctx, cl, http.MethodPatch, "/v1/notifications/"+url.PathEscape(id), struct {
		ScheduledAt time.Time `json:"scheduled_at"`
	}{at.UTC()}, true)
}

// ScheduleQuery selects schedules. An empty field selects all. Only operators may set Caller.
type ScheduleQuery struct {
	Status string // SCHEDULED or CANCELLED
	User   string // the receiver; a query with a user selects no fan-outs
	Caller string
	Cursor string
	Limit  int
}

// Schedules returns one page of schedules, newest request first.
func (cl *Client) Schedules(ctx context.Context, f ScheduleQuery) (ScheduledPage, error) {
	q := url.Values{}
	setText(q, "status", f.Status)
	setText(q, "user", f.User)
	setText(q, "caller", f.Caller)
	setText(q, "cursor", f.Cursor)
	setInt(q, "limit", int64(f.Limit))
	return getJSON[ScheduledPage](ctx, cl, "/v1/schedules", q)
}

// Forecast counts the receivers and triggers that become due at or after the time start and before
// the time end, by minute and channel. The two times may be at most 7 days apart. Zero times mean
// the next hour. Only operators may call it.
func (cl *Client) Forecast(ctx context.Context, start, end time.Time) (Forecast, error) {
	q := url.Values{}
	setTime(q, "from", start)
	setTime(q, "to", end)
	return getJSON[Forecast](ctx, cl, "/v1/schedules/forecast", q)
}

// Campaign returns a campaign and counts its receivers.
func (cl *Client) Campaign(ctx context.Context, id string, p Page) (Summary, error) {
	return getJSON[Summary](ctx, cl, "/v1/campaigns/"+url.PathEscape(id), p.query())
}

// CancelCampaign cancels a campaign, including the parts that the server receives later. It has no
// effect on calls to a provider that have already started.
func (cl *Client) CancelCampaign(ctx context.Context, id string) (Cancelled, error) {
	return sendJSON[Cancelled](ctx, cl, http.MethodDelete, "/v1/campaigns/"+url.PathEscape(id), nil, true)
}

// NotificationQuery selects notifications. An empty field selects all.
type NotificationQuery struct {
	User, Channel, Status, Template, Campaign string
	Code                                      string    // error code of the notification's status, e.g. twilio_21211
	Caller                                    string    // only operators may set it
	Since, Until                              time.Time // accepted in [Since, Until)
	Cursor                                    string
	Limit                                     int
}

// Notifications returns one page of notifications, newest first. Only the last page has no cursor;
// other pages may have fewer than Limit items, or no items. A query without a user needs a server
// that stores its history itself. Otherwise the error code is list_needs_user.
func (cl *Client) Notifications(ctx context.Context, f NotificationQuery) (UserHistory, error) {
	q := url.Values{}
	for name, v := range map[string]string{
		"channel": f.Channel, "status": f.Status, "caller": f.Caller, "template": f.Template, "campaign": f.Campaign, "code": f.Code, "cursor": f.Cursor,
	} {
		setText(q, name, v)
	}
	setTime(q, "since", f.Since)
	setTime(q, "until", f.Until)
	setInt(q, "limit", int64(f.Limit))
	path := "/v1/notifications"
	if f.User != "" {
		path = "/v1/users/" + url.PathEscape(f.User) + "/notifications"
	}
	return getJSON[UserHistory](ctx, cl, path, q)
}

// UserNotifications returns one page of a user's notifications, newest first. The cursor is empty
// for the first page. A limit of 0 means the server's default.
func (cl *Client) UserNotifications(ctx context.Context, user, cursor string, limit int) (UserHistory, error) {
	return cl.Notifications(ctx, NotificationQuery{User: user, Cursor: cursor, Limit: limit})
}

// User returns a user's profile.
func (cl *Client) User(ctx context.Context, user string) (User, error) {
	return getJSON[User](ctx, cl, "/v1/users/"+url.PathEscape(user), nil)
}

// PutUser stores a user's profile. If u.Version is not 0, it must equal the stored version;
// otherwise PutUser returns notify.KindConflict.
func (cl *Client) PutUser(ctx context.Context, u User) (UserVersion, error) {
	return sendJSON[UserVersion](ctx, cl, http.MethodPut, "/v1/users/"+url.PathEscape(u.UserID), u, u.Version == 0)
}

// Failed returns the caller's failed notifications that follow the given position in the failed
// feed. If there are none, the server waits up to maxWait (at most 30 s) for the next one.
func (cl *Client) Failed(ctx context.Context, position uint64, maxWait time.Duration, limit int) (FailedPage, error) {
	q := url.Values{}
	setInt(q, "after", int64(position))
	setInt(q, "limit", int64(limit))
	if maxWait > 0 {
		q.Set("wait", maxWait.String())
	}
	return getJSON[FailedPage](ctx, cl, "/v1/failed", q)
}

// DeadLetters returns one page of the dead letters that f selects. They may belong to any caller.
// DeadLetters ignores f.IDs. The cursor is empty for the first page. A limit of 0 means the
// server's default.
func (cl *Client) DeadLetters(ctx context.Context, f LetterFilter, cursor string, limit int) (DeadLetterPage, error) {
	q := f.Query()
	setText(q, "cursor", cursor)
	setInt(q, "limit", int64(limit))
	return getJSON[DeadLetterPage](ctx, cl, "/v1/ops/dead-letters", q)
}

// DeadLetter returns the dead letter of a notification's latest epoch.
func (cl *Client) DeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return getJSON[DeadLetter](ctx, cl, "/v1/ops/dead-letters/"+url.PathEscape(id), nil)
}

// Doctor returns the server's findings about its own health.
func (cl *Client) Doctor(ctx context.Context) ([]Finding, error) {
	return items[Finding](ctx, cl, "/v1/ops/doctor")
}

// Lag returns the consumer lag of each consumer group.
func (cl *Client) Lag(ctx context.Context) ([]GroupLag, error) {
	return items[GroupLag](ctx, cl, "/v1/ops/lag")
}

// items returns the items of a list without pages.
func items[T any](ctx context.Context, cl *Client, path string) ([]T, error) {
	out, err := getJSON[List[T]](ctx, cl, path, nil)
	return out.Items, err
}

// Debug returns the files of the server's process for a debug bundle.
func (cl *Client) Debug(ctx context.Context) (Debug, error) {
	return getJSON[Debug](ctx, cl, "/v1/ops/debug", nil)
}

// Ready returns nil if the server accepts requests.
func (cl *Client) Ready(ctx context.Context) error { return cl.get(ctx, "/readyz", nil, nil) }

// Tail calls fn with each outcome that f selects, as soon as the outcome happens. It also calls fn
// with all events that are not outcomes. Tail returns when ctx ends, when fn returns an error, or
// when the server closes the stream (nil). If f.Caller is empty, Tail shows the outcomes of the
// token's own caller. An operator may set another caller, or "*" for all callers. The HTTP client
// must have no overall timeout.
func (cl *Client) Tail(ctx context.Context, f TailFilter, fn func(Event) error) error {
	q := url.Values{}
	setText(q, "caller", f.Caller)
	setText(q, "channel", f.Channel)
	setText(q, "category", f.Category)
	setText(q, "status", f.Status)
	stream, err := cl.stream(ctx, "/v1/tail", q)
	if err != nil {
		return err
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "a line of the stream is not the expected JSON", Err: err}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Backup writes a backup of everything that the server stores to w. It returns the size of the
// backup in bytes. "notifyd restore" can read the backup. The HTTP client must have no overall
// timeout. If the backup is interrupted, Backup returns an error, and w contains an incomplete
// backup.
func (cl *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	stream, err := cl.stream(ctx, "/v1/ops/backup", nil)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	n, err := io.Copy(w, stream)
	return n, err
}

// stream sends a GET request and returns the body of the answer while it arrives. The code that
// calls stream must close the body.
func (cl *Client) stream(ctx context.Context, path string, q url.Values) (*connErrorReader, error) {
	resp, err := cl.roundTrip(ctx, call{method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return &connErrorReader{resp.Body, ctx}, nil
	}
	defer resp.Body.Close()
	body, err := readBody(resp)
	if err != nil {
		return nil, connError(ctx, err)
	}
	return nil, problemOf(resp, body)
}

// connErrorReader turns read errors into connection errors. So the errors of reading the body
// differ from the errors of the writer to which the body is copied.
type connErrorReader struct {
	io.ReadCloser
	ctx context.Context
}

func (a *connErrorReader) Read(p []byte) (int, error) {
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

// getJSON sends a GET request to a path and returns the decoded answer.
func getJSON[T any](ctx context.Context, cl *Client, path string, q url.Values) (out T, err error) {
	err = cl.get(ctx, path, q, &out)
	return out, err
}

// sendJSON sends a request to a path, with the payload as its JSON body, and returns the decoded
// answer.
func sendJSON[T any](ctx context.Context, cl *Client, method, path string, payload any, repeatable bool) (out T, err error) {
	_, err = cl.write(ctx, call{method: method, path: path, repeatable: repeatable}, payload, &out)
	return out, err
}

// write sends the request c with the payload as its JSON body. If payload is nil, the request has
// no body.
func (cl *Client) write(ctx context.Context, c call, payload, out any) (reply Reply, err error) {
	if payload != nil {
		c.contentType = TypeJSON
		if c.body, err = marshalBody(payload); err != nil {
			return reply, err
		}
	}
	return cl.do(ctx, c, out)
}

func (p Page) query() url.Values {
	q := url.Values{}
	setInt(q, "limit", int64(p.Limit))
	setText(q, "after", p.After)
	return q
}

func marshalBody(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: CodeMalformed, Msg: "the request cannot be encoded as JSON", Err: err}
	}
	return b, nil
}

func setText(q url.Values, name, v string) {
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
