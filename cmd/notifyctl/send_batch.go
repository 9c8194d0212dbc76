package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// Limits of one request of a batch. Never change chunkItems or chunkBytes. They determine where a
// file is cut into chunks, and each chunk has its own idempotency key. With other chunks, a user
// who sends a file again would send every notification twice.
const (
	chunkItems = 1000
	chunkBytes = 4 << 20
	maxLine    = 1 << 20
)

// sentItem is the result of one line of a batch of notifications or triggers.
type sentItem struct {
	Line      int        `json:"line"`
	TriggerID string     `json:"trigger_id,omitempty"`
	FireAt    *time.Time `json:"fire_at,omitempty"`
	api.BatchItem
}

// batchAnswer is the answer to one request of a batch.
type batchAnswer struct {
	Results  []sentItem `json:"results"` // the server does not set the field Line
	Accepted int        `json:"accepted"`
	Rejected int        `json:"rejected"`
}

// batchTotal is the sum of the answers of a whole batch.
type batchTotal struct {
	Sent     int            `json:"sent"`
	Accepted int            `json:"accepted"`
	Rejected int            `json:"rejected"`
	Replayed int            `json:"replayed"` // accepted items that an earlier run has already sent
	Failed   []sentItem     `json:"failed,omitempty"`
	States   map[string]int `json:"states,omitempty"` // notifications by state; set only with --wait
}

// maxFailed is how many failed items are kept for the result.
const maxFailed = 10_000

// batchSender sends a file of notifications or triggers. It sends the chunks one after another, so
// that two notifications to the same user keep the order of the file.
type batchSender struct {
	p             *program
	o             *sendOptions
	cl            *api.Client
	total         batchTotal
	acceptedItems []sentItem // accepted items to list; see shownItems
	ids           []string   // accepted notifications; set only with --wait
}

func runSendBatch(ctx context.Context, p *program, o *sendOptions) error {
	if o.dryRun {
		return printBatchRequest(p, o)
	}
	t, err := p.target()
	if err != nil {
		return err
	}
	if err := p.confirm(&t, changes, "send "+label(o.file)); err != nil {
		return err
	}
	s := &batchSender{p: p, o: o, cl: p.clientOf(&t)}
	key, err := batchKey(p, o.file, o.key)
	if err != nil {
		return err
	}
	err = postChunks(ctx, p, s.cl, o.file, "/v1/notifications:batch", key, s.recordAnswer)
	if err == nil && s.total.Sent == 0 {
		return term.Usage("%s contains no notifications", label(o.file))
	}
	var waited error
	if err == nil && o.wait {
		waited = s.wait(ctx)
	}
	if perr := s.print(); perr != nil {
		return perr
	}
	switch {
	case err != nil:
		return s.stoppedError(ctx, err)
	case waited != nil:
		return waited
	}
	if n := s.total.Rejected; n > 0 {
		return term.Exitf(term.ExitPartial, "%s of %s were refused", count(n), plural(s.total.Sent, "notification"))
	}
	return nil
}

// batchKey returns the beginning of the idempotency keys of a batch. For a file, it contains a hash
// of the whole file, so that a second run sends nothing twice. For a stream it contains no hash,
// because the stream was not read yet. Instead, postChunks adds a hash to each key.
func batchKey(p *program, file, asked string) (string, error) {
	if file == "-" {
		return cmp.Or(asked, "ctl-stream"), nil
	}
	f, _, err := openInput(p, file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.close() }() // closing cannot lose data, because it was only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return cmp.Or(asked, "ctl-file") + "-" + hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// chunk contains the lines of a single request. This chunk is a part of a batch file, and not a
// chunk of a fan-out in the log.
type chunk struct {
	number int
	lines  []int // line numbers in the file
	body   []byte
}

// eachChunk cuts a file into chunks and calls the function fn for each chunk. The function must not
// keep the chunk, because eachChunk uses it again for the next chunk.
func eachChunk(p *program, name string, fn func(*chunk) error) error {
	f, _, err := openInput(p, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }() // closing cannot lose data, because it was only read
	var c chunk
	failed := false // a chunk failed, so the chunks after it must not be sent
	flush := func() error {
		if len(c.lines) == 0 {
			return nil
		}
		err := fn(&c)
		c.number, c.lines, c.body = c.number+1, c.lines[:0], c.body[:0]
		return err
	}
	err = eachItem(f, label(name), func(line int, item []byte) error {
		if len(c.lines) == chunkItems || len(c.body)+len(item) > chunkBytes {
			if err := flush(); err != nil {
				failed = true
				return err
			}
		}
		c.lines, c.body = append(c.lines, line), append(append(c.body, item...), '\n')
		return nil
	})
	if failed {
		return err
	}
	return errors.Join(flush(), err)
}

// postChunks sends the chunks of a file to an API path and calls onAnswer with every answer. The
// idempotency key of each chunk begins with the parameter key. For a stream, it also ends with a
// hash of the stream from its beginning to the end of that chunk.
func postChunks(ctx context.Context, p *program, cl *api.Client, file, path, key string, onAnswer func(c *chunk, r *batchAnswer, replayed bool) error) error {
	chain := sha256.New()
	return eachChunk(p, file, func(c *chunk) error {
		key := fmt.Sprintf("%s-%d", key, c.number)
		if file == "-" {
			chain.Write(c.body)
			key += "-" + hex.EncodeToString(chain.Sum(nil)[:16])
		}
		reply, err := cl.Post(ctx, path, api.TypeNDJSON, c.body, key)
		if err != nil {
			return err
		}
		var r batchAnswer
		if err := json.Unmarshal(reply.Body, &r); err != nil {
			return badAnswer(err)
		}
		return onAnswer(c, &r, reply.Replayed)
	})
}

// recordAnswer adds an answer to the totals. With -o jsonl it also prints each item of the answer.
func (s *batchSender) recordAnswer(c *chunk, r *batchAnswer, replayed bool) error {
	if len(r.Results) != len(c.lines) {
		return badAnswer(nil)
	}
	s.total.Sent += len(r.Results)
	s.total.Accepted += r.Accepted
	s.total.Rejected += r.Rejected
	if replayed {
		s.total.Replayed += r.Accepted
	}
	pr := s.p.printer()
	each := pr.Format == "jsonl"
	for i, item := range r.Results {
		item.Line = c.lines[i]
		if each {
			if err := pr.Line(item, nil); err != nil {
				return err
			}
		}
		switch {
		case item.Error != nil:
			if len(s.total.Failed) < maxFailed {
				s.total.Failed = append(s.total.Failed, item)
			}
		case len(s.acceptedItems) <= shownItems:
			s.acceptedItems = append(s.acceptedItems, item)
		}
		if item.Error == nil && s.o.wait {
			s.ids = append(s.ids, item.NotificationID)
		}
	}
	return nil
}

// shownItems is the largest number of accepted items that a table lists. Further items are only
// counted.
const shownItems = 20

func (s *batchSender) print() error {
	defer s.noteTotals()
	pr := s.p.printer()
	if pr.Format == "jsonl" {
		return nil
	}
	var t term.Table
	few := len(s.acceptedItems) <= shownItems
	if few || len(s.total.Failed) > 0 {
		t = term.Table{{"LINE", "STATUS", "NOTIFICATION", "CODE", "DETAIL"}}
	}
	for _, it := range s.acceptedItems {
		if few {
			t = append(t, []string{fmt.Sprint(it.Line), it.Status, it.NotificationID})
		}
	}
	for _, it := range s.total.Failed {
		t = append(t, []string{fmt.Sprint(it.Line), "refused", "", it.Error.Code, detailOf(it.Error)})
	}
	return pr.Print(s.total, t)
}

// detailOf returns the text of an item's error. If the error names a wrong field, the text begins
// with this name.
func detailOf(e *api.ItemError) string {
	if e.Field != "" {
		return e.Field + ": " + e.Detail
	}
	return e.Detail
}

func (s *batchSender) noteTotals() {
	t := &s.total
	if t.Sent == 0 {
		return
	}
	text := fmt.Sprintf("%s: %s accepted, %s refused", plural(t.Sent, "notification"), count(t.Accepted), count(t.Rejected))
	if t.Replayed > 0 {
		text += fmt.Sprintf(" (%s were sent by an earlier run and not sent again; --idempotency-key NAME sends them again)", count(t.Replayed))
	}
	s.p.note("%s", text)
	for _, state := range slices.Sorted(maps.Keys(t.States)) {
		s.p.note("%10s %s", count(t.States[state]), state)
	}
}

// stoppedError adds to err the advice how to continue.
func (s *batchSender) stoppedError(ctx context.Context, err error) error {
	if term.ExitCode(err) == term.ExitUsage {
		return err
	}
	advice := "run the same command again: it sends only what is left"
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted after %s notifications", count(s.total.Sent))
	}
	return &term.Error{Exit: exitOf(ctx, err), Err: err, Next: []string{advice}}
}

// wait asks for the state of every accepted item until each item has an outcome.
func (s *batchSender) wait(ctx context.Context) error {
	s.total.States = map[string]int{}
	open := s.ids
	err := pollUntil(ctx, s.p, s.p.now().Add(s.p.global.timeout), func(ctx context.Context) (bool, error) {
		var left []string
		for _, id := range open {
			st, err := s.cl.Notification(ctx, id)
			if err != nil {
				return false, err
			}
			if !isTerminal(st.Status) {
				left = append(left, id)
				continue
			}
			s.total.States[st.Status]++
		}
		open = left
		return len(open) == 0, nil
	})
	switch {
	case err == errPending: //nolint:errorlint // exactly this value
		return term.Exitf(term.ExitPending, "%s of %s notifications have no outcome yet; they are still being delivered", count(len(open)), count(len(s.ids)))
	case err != nil:
		return err
	}
	if n := countUndelivered(s.total.States); n > 0 {
		return term.Exitf(term.ExitPartial, "%s of %s notifications were not delivered", count(n), count(len(s.ids)))
	}
	return nil
}

// printBatchRequest prints the request of the first chunk, and how many other requests there are.
func printBatchRequest(p *program, o *sendOptions) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	key, err := batchKey(p, o.file, o.key)
	if err != nil {
		return err
	}
	chunks, lines := 0, 0
	err = eachChunk(p, o.file, func(c *chunk) error {
		chunks, lines = chunks+1, lines+len(c.lines)
		if c.number > 0 {
			return nil
		}
		var body []json.RawMessage
		for i, line := range bytes.Split(bytes.TrimSuffix(c.body, []byte("\n")), []byte("\n")) {
			if !json.Valid(line) {
				return term.Usage("%s:%d: the line is not valid JSON", label(o.file), c.lines[i])
			}
			body = append(body, bytes.Clone(line))
		}
		return printRequest(p, t.server+"/v1/notifications:batch", key+"-0", body)
	})
	if err == nil {
		p.note("%s notifications in %d requests", count(lines), chunks)
	}
	return err
}
