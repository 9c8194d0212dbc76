package provider

import (
	"bytes"
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Sender is a client of a provider. Send delivers every item of a call. It reports each item once
// before it returns.
type Sender interface {
	Send(ctx context.Context, call *notify.Call, report notify.Report)
}

// Push sends each item of a call to APNs or FCM. The scheme of the item's address chooses the
// provider: "apns:" or "fcm:".
type Push struct {
	apns, fcm Sender // nil: not configured
}

// NewPush returns a Push. A provider that is nil (nil itself, not a nil *APNs) is not configured.
// Items for it end with ClassConfig.
func NewPush(apns, fcm Sender) *Push { return &Push{apns, fcm} }

var schemes = [...][]byte{[]byte("apns:"), []byte("fcm:")}

// Send implements Sender.
func (p *Push) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	var where [len(schemes)][]int
	for i := range call.Items {
		s := schemeOf(call.Items[i].Address)
		if s < 0 {
			report.One(i, notify.Result{Class: notify.ClassPermanent, Code: "bad_address", Provider: "push"})
			continue
		}
		where[s] = append(where[s], i)
	}
	var wg sync.WaitGroup
	for s, to := range [...]Sender{p.apns, p.fcm} {
		switch n := len(where[s]); {
		case n == 0:
		case to == nil:
			name := string(schemes[s][:len(schemes[s])-1])
			for _, i := range where[s] {
				report.One(i, notify.Result{Class: notify.ClassConfig, Code: name + "_not_configured", Provider: name})
			}
		case n == len(call.Items):
			to.Send(ctx, call, report)
		default:
			wg.Go(func() { sendItems(ctx, to, call, where[s], report) })
		}
	}
	wg.Wait()
}

// sendItems sends only the call's items whose indexes are given.
func sendItems(ctx context.Context, sender Sender, call *notify.Call, indexes []int, report notify.Report) {
	part := *call
	part.Items = make([]notify.Item, len(indexes))
	for j, i := range indexes {
		part.Items[j] = call.Items[i]
	}
	sender.Send(ctx, &part, notify.Each(func(j int, r notify.Result) { report.One(indexes[j], r) }))
}

// pushText is the parsed content of a call, in the form that both providers need.
type pushText struct {
	title, body Template
	vars        Variables
	data        []variable
}

func parsePush(c *notify.Content) (t pushText, err error) {
	if c.Template != "" && c.Title == "" && c.Body == "" {
		return t, notify.Invalid("template_unsupported", "content.template", `push providers have no templates; set "title" or "body" instead`)
	}
	if t.vars, err = SharedVariables(c.Variables); err != nil {
		return t, err
	}
	if t.data, _, err = parseVariables(nil, nil, c.Data); err != nil {
		return t, notify.Invalid("bad_data", "content.data", "must be one JSON object without duplicate names")
	}
	t.title, t.body = ParseTemplate(c.Title, JSON), ParseTemplate(c.Body, JSON)
	return t, nil
}

func schemeOf(address []byte) int {
	for s := range schemes {
		if bytes.HasPrefix(address, schemes[s]) {
			return s
		}
	}
	return -1
}
