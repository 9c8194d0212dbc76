package intake

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

type contentJSON struct {
	Title       string         `json:"title"`
	Body        string         `json:"body"`
	HTML        string         `json:"html"`
	Template    string         `json:"template"`
	Variables   jsontext.Value `json:"variables"`
	Data        jsontext.Value `json:"data"`
	CollapseKey string         `json:"collapse_key"`
	From        string         `json:"from"`
}

type termsJSON struct {
	Channel     string      `json:"channel"`
	Category    string      `json:"category"`
	Content     contentJSON `json:"content"`
	ScheduledAt *time.Time  `json:"scheduled_at"`
	ExpiresAt   *time.Time  `json:"expires_at"`
}

type receiverJSON struct {
	User      string         `json:"user_id"`
	Address   string         `json:"address"`
	Variables jsontext.Value `json:"variables"`
}

// noteJSON is the body of a single notification and an item of a batch.
type noteJSON struct {
	termsJSON
	To receiverJSON `json:"to"`
}

// note is one notification for one receiver. Its slices and strings may alias
// the request's body.
type note struct {
	terms
	user, address, vars []byte
}

// decodeNote reads the body of a single notification, or one item of a batch.
func decodeNote(b []byte, n *note) error {
	if fastNote(b, n) {
		return nil
	}
	return slowNote(b, n)
}

func slowNote(b []byte, n *note) error {
	var j noteJSON
	if err := request.Decode(b, &j); err != nil {
		return err
	}
	if err := j.termsJSON.terms(&n.terms); err != nil {
		return err
	}
	vars, err := object(j.To.Variables, "to.variables", 2)
	if err != nil {
		return err
	}
	n.user, n.address, n.vars = []byte(j.To.User), []byte(j.To.Address), vars
	return nil
}

func (j *termsJSON) terms(t *terms) (err error) {
	if t.channel, t.category, err = parseLane(j.Channel, j.Category); err != nil {
		return err
	}
	t.content = notify.Content{
		Template: j.Content.Template, Title: j.Content.Title, Body: j.Content.Body, HTML: j.Content.HTML,
		CollapseKey: j.Content.CollapseKey, From: j.Content.From,
	}
	if t.content.Variables, err = object(j.Content.Variables, "content.variables", 2); err != nil {
		return err
	}
	if t.content.Data, err = object(j.Content.Data, "content.data", 2); err != nil {
		return err
	}
	t.scheduled, t.expires = notBefore(j.ScheduledAt), millis(j.ExpiresAt)
	return nil
}

func parseLane(channel, category string) (notify.Channel, notify.Category, error) {
	if channel == "" {
		return 0, 0, invalid("required", "channel", "push, sms or email")
	}
	ch, ok := notify.ParseChannel(channel)
	if !ok {
		return 0, 0, invalid("unknown_channel", "channel", "push, sms or email")
	}
	if category == "" {
		return 0, 0, invalid("required", "category", "otp, alert, transactional, marketing or digest")
	}
	cat, ok := notify.ParseCategory(category)
	if !ok {
		return 0, 0, invalid("unknown_category", "category", "otp, alert, transactional, marketing or digest")
	}
	return ch, cat, nil
}

// millis is never 0 for a given time, so that 0 can mean none: 1970 is past.
func millis(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	if ms := t.UnixMilli(); ms != 0 {
		return ms
	}
	return 1
}

// notBefore is millis of a time before which nothing may happen: the part of a
// millisecond counts as all of it.
func notBefore(t *time.Time) int64 {
	ms := millis(t)
	if t != nil && t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// object returns v if it is an object nested no deeper than allowed, nil for
// null; depth is the number of values around it.
func object(v jsontext.Value, field string, depth int) ([]byte, error) {
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil, nil
	case v.Kind() != '{':
		return nil, invalid("wrong_type", field, "must be an object")
	case request.Nesting(v)+depth > request.MaxDepth:
		return nil, tooDeep(field)
	}
	return v, nil
}

func tooDeep(field string) error {
	return invalid("too_deep", field, fmt.Sprintf("nested deeper than %d", request.MaxDepth))
}
