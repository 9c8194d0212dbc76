package server

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func deadLetter(d *engine.DeadLetter) api.DeadLetter {
	return api.DeadLetter{
		NotificationID: deadletter.LetterID(d), Epoch: d.Epoch, Seq: d.Seq, Caller: d.Caller, Campaign: d.Campaign,
		Channel: d.Channel, Category: d.Category, UserID: d.User, Template: d.Template,
		Status: d.Ended().String(), Class: d.Class, Code: d.Code, Provider: d.Provider, Attempts: d.Attempts, State: d.State,
		FirstFailedAt: moment(d.FirstFailed), LastFailedAt: moment(d.LastFailed), ExpiresAt: moments(d.Expires),
		KeptUntil: moments(d.Until), Extra: d.Extra, TraceID: notify.TraceID(d.Trace),
	}
}

// fullLetter is what operators see.
func fullLetter(d *engine.DeadLetter) api.DeadLetter {
	out := deadLetter(d)
	out.Job, out.Origin = d.Job, fmt.Sprintf("%s/%d/%d", d.Topic, d.Partition, d.Offset)
	return out
}

func (s *Server) listDeadLetters(x *exchange) error {
	q := x.query()
	limit := q.pageSize(&s.cfg)
	f := api.ReadLetterFilter(q.text, q.moment)
	bound := []string{"dead", x.id.Caller, f.Query().Encode()}
	cursor, err := q.place(s.cursors, bound)
	if err != nil {
		return err
	}
	ds, next, err := s.someDeadLetters(x.r.Context(), &f, cursor, int(limit))
	if err != nil {
		return err
	}
	page := api.DeadLetterPage{Items: make([]api.DeadLetter, 0, len(ds)), Cursor: s.cursors.seal(next, bound...)}
	for i := range ds {
		page.Items = append(page.Items, fullLetter(&ds[i]))
	}
	return x.json(http.StatusOK, page)
}

// someDeadLetters returns a page of what f selects of the index. With attempts or an
// expression it may hold fewer than limit, or none, and yet not be the last.
func (s *Server) someDeadLetters(ctx context.Context, f *api.LetterFilter, cursor []byte, limit int) ([]engine.DeadLetter, []byte, error) {
	listed := engine.DeadLetterFilter{Since: f.Since, Until: f.Until}
	f.Since, f.Until = 0, 0 // a list of no time is an empty page, not an error as in a plan
	match, err := deadletter.NewMatcher(f)
	if err != nil {
		return nil, nil, err
	}
	listed.Want = match.Named
	if f.Attempts == "" && f.Where == "" {
		return s.deps.DeadLetters.List(ctx, listed, cursor, limit)
	}
	ds, next, err := s.deps.DeadLetters.List(ctx, listed, cursor, s.cfg.MaxPageSize)
	if err != nil {
		return nil, nil, err
	}
	var out []engine.DeadLetter
	for i := range ds {
		ok, err := match.Matches(ctx, &ds[i])
		if err != nil {
			return nil, nil, err
		}
		if ok {
			out = append(out, ds[i])
		}
	}
	return out, next, nil
}

// getDeadLetter answers with the dead letter of an epoch; the latest unless
// the query names one.
func (s *Server) getDeadLetter(x *exchange) error {
	name := x.r.PathValue("id")
	id, err := deadletter.ParseLetterID(name)
	if err != nil {
		return notify.NotFound("dead_letter")
	}
	q := x.query()
	named := x.r.URL.Query().Has("epoch")
	epoch := q.unsigned("epoch")
	if epoch > 1<<16-1 {
		return notify.Invalid("out_of_range", "epoch", "must be a number from 0 to 65,535")
	}
	if err := q.rest(); err != nil {
		return err
	}
	d, err := s.deadLetterOf(x, id, uint16(epoch), named || strings.HasPrefix(name, "trg_"))
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, fullLetter(&d))
}

// deadLetterOf looks from the latest epoch the notification reached down to 0,
// unless the epoch is named.
func (s *Server) deadLetterOf(x *exchange, id notify.ID, epoch uint16, named bool) (engine.DeadLetter, error) {
	ctx := x.r.Context()
	if named {
		return s.deps.DeadLetters.Get(ctx, id, epoch)
	}
	var k known
	var err error
	if k.found, err = s.deps.History.Find(ctx, id); err == nil {
		err = k.load(ctx, s.deps.Status)
	}
	if kind := notify.KindOf(err); err != nil && kind != notify.KindNotFound && kind != notify.KindGone {
		return engine.DeadLetter{}, err
	}
	for e := int(k.out.Epoch); ; e-- {
		d, err := s.deps.DeadLetters.Get(ctx, id, uint16(e))
		if e == 0 || err == nil || notify.KindOf(err) != notify.KindNotFound {
			return d, err
		}
	}
}

func (s *Server) doctor(x *exchange) error { return x.answer("doctor", itemsOf(s.deps.Doctor)) }

func (s *Server) lag(x *exchange) error { return x.answer("lag", itemsOf(s.deps.Lag)) }

// debug answers with what a report of a bug needs to know of the process.
func (s *Server) debug(x *exchange) error { return x.answer("debug", s.deps.Debug) }

func (s *Server) rates(x *exchange) error { return x.answer("rates", s.deps.Rates) }

func (s *Server) accounts(x *exchange) error { return x.answer("accounts", s.deps.Accounts) }

// itemsOf makes a report that says a list say it as every list of the API is answered.
func itemsOf(ask Report) Report {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context) (any, error) {
		list, err := ask(ctx)
		if v := reflect.ValueOf(list); err == nil && v.Kind() == reflect.Slice && v.IsNil() {
			list = []any{}
		}
		return map[string]any{"items": list}, err
	}
}

// answer passes on what a report says.
func (x *exchange) answer(name string, ask Report) error {
	if ask == nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: name + "_unavailable", Msg: "this server's roles do not include what answers this"}
	}
	if err := x.query().rest(); err != nil {
		return err
	}
	return x.reply(ask(x.r.Context()))
}
