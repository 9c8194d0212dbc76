package server

import (
	"bytes"
	"container/list"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Receipts and the operator page's forms come without a token, so anybody who reaches
// the API may open them. They have places and memory of their own and take none of
// callers', and they take a place only after the body has come: a client that sends
// its body slowly holds nothing but its connection and a few KiB.
const (
	maxReceipts = 256      // receipts handled at a time
	maxReceipt  = 4 << 20  // bytes of one: a batch of SendGrid's events
	maxForm     = 1 << 20  // bytes of a form of the page: the largest holds a plan's spec
	postsMemory = 32 << 20 // bytes of all bodies above firstRead or of unknown length

	// maxReading is how many bodies of one kind are read at a time. Over it the body
	// that has been read longest is cut off: a provider's comes at once.
	maxReading = 1024
	// notesMemory holds every body of up to firstRead that can be under way, so that
	// none of them ever waits for memory that slow or large bodies hold.
	notesMemory = firstRead * (2*maxReading + maxReceipts + maxPages)
)

// reading is the set of bodies of one kind that are being read. Its methods may be
// called from many goroutines.
type reading struct {
	mu   sync.Mutex
	open list.List // of *openBody, the oldest first
}

// openBody is a body in a reading. The reading's lock guards cutOff.
type openBody struct {
	conn   *http.ResponseController
	cutOff bool
}

// enter adds a body that comes over conn. Over maxReading it ends the read of the
// oldest one. leave takes the body out and reports whether it was cut off; conn is
// not used after that.
func (g *reading) enter(conn *http.ResponseController) (leave func() (cutOff bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open.Len() >= maxReading {
		oldest := g.open.Remove(g.open.Front()).(*openBody) //nolint:forcetypeassert // it holds nothing else
		oldest.cutOff = true
		_ = oldest.conn.SetReadDeadline(time.Unix(1, 0)) // a recorder in a test has none
	}
	b := &openBody{conn: conn}
	e := g.open.PushBack(b)
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open.Remove(e) // does nothing if it was cut off
		return b.cutOff
	}
}

// readOpenBody reads the body of a request without a token. It refuses a receipt
// that cannot be believed before it reads any of it: one of a provider that is not
// known, or without the header of its signature.
func readOpenBody(x *exchange) error {
	s := x.srv
	from := &s.formsRead
	if x.route.body == receiptBody {
		from = &s.receiptsRead
		rc, ok := s.deps.Receipts[x.r.PathValue("provider")]
		switch {
		case !ok:
			return notify.NotFound("provider")
		case x.r.Header.Get(rc.Signature) == "":
			return &notify.Error{Kind: notify.KindUnauthorized, Code: "bad_signature", Msg: "a receipt needs the header " + rc.Signature}
		}
	}
	if x.r.ContentLength == 0 {
		return nil
	}
	leave := from.enter(http.NewResponseController(x.w))
	err := s.readBody(x)
	if leave() {
		s.deps.Hooks.refused("slow")
		return &notify.Error{
			Kind: notify.KindUnavailable, Code: "busy", RetryAfter: time.Second, Err: err,
			Msg: "too many bodies are being read, and this one had been on its way for longest",
		}
	}
	if err == nil {
		x.r.Body = io.NopCloser(bytes.NewReader(x.body.data)) // for a handler that reads it there
		x.r.ContentLength = int64(len(x.body.data))
	}
	return err
}

// openMemory returns the most bytes that the body of a request without a token may
// have, and the memory that holds it.
func openMemory(x *exchange) (limit int64, from *memory) {
	limit = maxReceipt
	if x.route.body == formBody {
		limit = maxForm
	}
	if n := x.r.ContentLength; n >= 0 && n <= firstRead && x.r.Header.Get("Content-Encoding") == "" {
		return limit, x.srv.notes
	}
	return limit, x.srv.posts
}

// takeReceipt takes a provider's delivery receipts. There is no token: the
// provider's own signature is checked over the body as it came.
func takeReceipt(x *exchange) error {
	if err := x.srv.deps.Receipts[x.r.PathValue("provider")].Take(x.r, x.body.data); err != nil {
		return err
	}
	return x.bytes(http.StatusNoContent, nil)
}
