package record

import (
	"context"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// minLater separates scheduled messages from others: a message counts as scheduled if it was
// appended minLater or more after its acceptance. Retries of an append delay a message by less than
// this, at most by a second.
const minLater = 2 * time.Second

// Log records the messages in the log. A scheduled message is appended to the log only when it is
// due. So Log reads on after the end of the period; the parameter due says for how long. The result
// short is true if messages may be missing, because the log begins within the period.
func (r *Recorder) Log(ctx context.Context, brokers []string, due time.Duration) (short bool, err error) {
	conn := log.Conn{Brokers: brokers}
	if name, ok := strings.CutPrefix(strings.Join(brokers, ","), load.Socket); ok {
		conn.Brokers = []string{"127.0.0.1:9092"} // required, but the dialer below ignores this address
		conn.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", name)
		}
	}
	admin, err := log.NewAdmin(log.AdminConfig{Conn: conn})
	if err != nil {
		return false, err
	}
	defer admin.Close()
	reader, err := log.NewReader(conn)
	if err != nil {
		return false, err
	}
	defer reader.Close()
	return r.readTopics(ctx, admin, conserve.WorkerLog{Admin: admin, Reader: reader}, due)
}

func (r *Recorder) readTopics(ctx context.Context, admin *log.Admin, over conserve.WorkerLog, due time.Duration) (short bool, err error) {
	topics := notify.FirstTopics()
	starts, err := admin.StartOffsets(ctx, topics...)
	if err != nil {
		return false, err
	}
	from, err := admin.OffsetsSince(ctx, r.since, topics...)
	if err != nil {
		return false, err
	}
	to, err := admin.OffsetsSince(ctx, r.until.Add(due), topics...)
	if err != nil {
		return false, err
	}
	for tp, at := range from {
		short = short || at > 0 && at == starts[tp]
	}
	return short, over.Read(ctx, from, to, func(_ log.TopicPartition, rec *log.Record) error {
		var env notify.Envelope
		if err := notify.DecodeEnvelope(rec.Value, &env); err != nil || env.Derived() {
			// Skip a damaged record, which cannot be counted, and a derived record, such as a
			// retry, which is not part of the load.
			return nil //nolint:nilerr // the comment above says why
		}
		r.addEnvelope(&env, rec.Time)
		return nil
	})
}

// addEnvelope counts the messages of a record of the log. The parameter came is the time at which
// the record was appended. If that was long after the messages were accepted, they were scheduled.
func (r *Recorder) addEnvelope(env *notify.Envelope, came time.Time) {
	m := Message{
		Fanout: env.FanOut, Base: env.Chunk.Base, Count: int(env.Count), Channel: env.Channel, Category: env.Category, Caller: env.Caller,
		Trace: env.Trace, User: env.LogKey(), Accepted: time.UnixMilli(env.Accepted), Bytes: len(env.Content.Body) + len(env.Content.HTML),
	}
	if later := came.Sub(m.Accepted); later >= minLater {
		m.DueAfter = later
	}
	r.Add(&m)
}

// Archive records the messages in the outcomes of an archive. If Latest is then before the end of
// the period, the archive ends early and the last messages are missing.
func (r *Recorder) Archive(ctx context.Context, files fs.FS) error {
	ms, err := archive.ListFS(files)
	if err != nil {
		return err
	}
	var m Message
	for i := range ms {
		if ms[i].Kind != archive.Outcomes || ms[i].Written.Before(r.since) {
			continue
		}
		err := archive.EachOutcome(files, &ms[i], func(o *archive.Outcome) error {
			if err := m.setFromOutcome(o.ID, o.Channel, o.Category); err != nil {
				return err
			}
			m.Caller, m.User, m.Accepted = o.Caller, append(m.User[:0], o.User...), o.Accepted
			r.Add(&m)
			return ctx.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// setFromOutcome fills in the fields that follow from the id, channel and category of an outcome.
// It returns an error of notify.KindInvalid if this release does not know one of the three.
func (m *Message) setFromOutcome(id, channel, category string) error {
	of, err := notify.ParseID(id)
	var known [2]bool
	m.Channel, known[0] = notify.ParseChannel(channel)
	m.Category, known[1] = notify.ParseCategory(category)
	if err != nil || known != [2]bool{true, true} {
		return notify.Invalid("bad_outcome", "", "this release does not know the id, channel or category of a message")
	}
	m.Fanout, m.Base, m.Count = of.FanOut, of.Base, 1
	return nil
}

// Client contains the methods of *api.Client that Server needs.
type Client interface {
	Notifications(ctx context.Context, q api.NotificationQuery) (api.UserHistory, error)
	Triggers(ctx context.Context, q api.TriggerQuery) (api.TriggerPage, error)
}

// Server records the messages in the history of a server, and the server's triggers. If the
// client's token allows access to the messages of only one caller, Server records only these
// messages.
func (r *Recorder) Server(ctx context.Context, c Client) error {
	q := api.NotificationQuery{Since: r.since, Until: r.until, Limit: 1000}
	for {
		page, err := c.Notifications(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			s := &page.Items[i]
			m := Message{Caller: s.Caller, Trace: s.TraceID, User: []byte(s.UserID), Accepted: s.AcceptedAt}
			if err := m.setFromOutcome(s.NotificationID, s.Channel, s.Category); err != nil {
				return err
			}
			if s.ScheduledAt != nil {
				m.DueAfter = max(s.ScheduledAt.Sub(s.AcceptedAt), 0)
			}
			r.Add(&m)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return r.addTriggers(ctx, c)
		}
	}
}

// addTriggers counts the triggers. The server lists the newest trigger first. So the loop ends at
// the first trigger that was created before the period.
func (r *Recorder) addTriggers(ctx context.Context, c Client) error {
	q := api.TriggerQuery{Limit: 1000}
	for {
		page, err := c.Triggers(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			t := &page.Items[i]
			if t.CreatedAt.Before(r.since) {
				return nil
			}
			r.Add(&Message{Trigger: true, Count: 1, Caller: t.Caller, Accepted: t.CreatedAt, DueAfter: max(t.FireAt.Sub(t.CreatedAt), 0), Bytes: t.PayloadBytes})
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return nil
		}
	}
}
