package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// triggerItem is what became of one line of a file.
type triggerItem struct {
	Line int `json:"line"`
	api.TriggerItem
}

// triggerTotal is the result of a whole file.
type triggerTotal struct {
	Sent     int           `json:"sent"`
	Accepted int           `json:"accepted"`
	Rejected int           `json:"rejected"`
	Replayed int           `json:"replayed"` // of the accepted, those an earlier run had registered
	Failed   []triggerItem `json:"failed,omitempty"`
}

// runTriggerFile registers the triggers of a file, a thousand a request. As for
// a batch of notifications its keys follow from the file's content: what an
// earlier run registered is not registered twice.
func runTriggerFile(ctx context.Context, p *program, o *triggerOptions) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	if err := p.confirm(&t, changes, "register the triggers in "+label(o.file)); err != nil {
		return err
	}
	begin, err := batchKey(p, &sendOptions{file: o.file, key: o.key})
	if err != nil {
		return err
	}
	cl, pr, chain := p.clientOf(&t), p.printer(), sha256.New()
	var sum triggerTotal
	err = eachChunk(p, o.file, func(c *chunk) error {
		key := fmt.Sprintf("%s-%d", begin, c.number)
		if o.file == "-" {
			chain.Write(c.body)
			key += "-" + hex.EncodeToString(chain.Sum(nil)[:16])
		}
		reply, err := cl.Post(ctx, "/v1/triggers:batch", api.TypeNDJSON, c.body, key)
		if err != nil {
			return err
		}
		var r api.TriggerBatchResult
		if err := json.Unmarshal(reply.Body, &r); err != nil || len(r.Results) != len(c.lines) {
			return badAnswer(err)
		}
		sum.Sent, sum.Accepted, sum.Rejected = sum.Sent+len(r.Results), sum.Accepted+r.Accepted, sum.Rejected+r.Rejected
		if reply.Replayed {
			sum.Replayed += r.Accepted
		}
		for i, item := range r.Results {
			line := triggerItem{c.lines[i], item}
			if pr.Format == "jsonl" {
				if err := pr.Line(line, nil); err != nil {
					return err
				}
			}
			if item.Error != nil && len(sum.Failed) < maxFailed {
				sum.Failed = append(sum.Failed, line)
			}
		}
		return nil
	})
	if err == nil && sum.Sent == 0 {
		return term.Usage("%s holds no triggers", label(o.file))
	}
	if pr.Format != "jsonl" {
		if perr := pr.Print(sum, func() term.Table {
			if len(sum.Failed) == 0 {
				return nil
			}
			t := term.Table{{"LINE", "CODE", "DETAIL"}}
			for _, f := range sum.Failed {
				detail := f.Error.Detail
				if f.Error.Field != "" {
					detail = f.Error.Field + ": " + detail
				}
				t = append(t, []string{fmt.Sprint(f.Line), f.Error.Code, detail})
			}
			return t
		}); perr != nil {
			return perr
		}
	}
	p.note("%s triggers: %s accepted (%s by an earlier run), %s refused", count(sum.Sent), count(sum.Accepted), count(sum.Replayed), count(sum.Rejected))
	switch {
	case err != nil:
		return err
	case sum.Rejected > 0:
		return term.Exitf(term.ExitPartial, "%s of %s triggers were refused", count(sum.Rejected), count(sum.Sent))
	}
	return nil
}
