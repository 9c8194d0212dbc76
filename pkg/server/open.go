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

// Receipts and the operator page's forms come without a token, so anybody who reaches the API can
// send them. They have places and memory of their own, apart from those of callers. They take a
// place only after the body has arrived: a client that sends its body slowly holds only its
// connection and a few KiB.
const (
	maxReceipts = 256      // receipts handled at a time
	maxReceipt  = 4 << 20  // bytes of one receipt: a batch of SendGrid's events
	maxForm     = 1 << 20  // bytes of one form: the largest holds a plan's spec
	postsMemory = 32 << 20 // bytes of all bodies above initialReadSize or of unknown length

	// maxReading is how many bodies of one kind are read at once. Above it, the body that has
	// taken longest is cut off: a provider's body arrives at once.
	maxReading = 1024
	// notesMemory is enough for every body of up to initialReadSize that can be under way, so
	// that none of them ever waits for memory that slow or large bodies hold.
	notesMemory = initialReadSize * (2*maxReading + maxReceipts + maxPages)
)

// openBodies is the set of bodies of one kind that are being read. It may be used from many
// goroutines.
type openBodies struct {
	mu     sync.Mutex
	bodies list.List // of *openBody, the oldest first
}

// openBody is a body in openBodies. The lock of openBodies guards cutOff.
type openBody struct {
	conn   *http.ResponseController
	cutOff bool
}

// addBody adds a body that comes over conn. Above maxReading it ends the read of the oldest body.
// leave removes the body and reports whether it was cut off; conn is not used after that.
func (g *openBodies) addBody(conn *http.ResponseController) (leave func() (cutOff bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bodies.Len() >= maxReading {
		oldest := g.bodies.Remove(g.bodies.Front()).(*openBody) //nolint:forcetypeassert // it holds nothing else
		oldest.cutOff = true
		_ = oldest.conn.SetReadDeadline(time.Unix(1, 0)) // an error is ignored: the recorders of tests have no deadlines
	}
	b := &openBody{conn: conn}
	e := g.bodies.PushBack(b)
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.bodies.Remove(e) // does nothing if it was cut off
		return b.cutOff
	}
}

// readOpenBody reads the body of a request without a token. It refuses a receipt that cannot be
// genuine before it reads any of it: from an unknown provider, or without the header of its
// signature.
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
	leave := from.addBody(http.NewResponseController(x.w))
	err := s.readBody(x)
	if leave() {
		s.deps.Hooks.refused("slow")
		return &notify.Error{
			Kind: notify.KindUnavailable, Code: "busy", RetryAfter: time.Second, Err: err,
			Msg: "too many bodies are being read, and this one had taken longest",
		}
	}
	if err == nil {
		x.r.Body = io.NopCloser(bytes.NewReader(x.body.data)) // for handlers that read r.Body
		x.r.ContentLength = int64(len(x.body.data))
	}
	return err
}

// openBodyMemory returns the largest size of the body of a request without a token, and the
// memory for it.
func openBodyMemory(x *exchange) (limit int64, from *memory) {
	limit = maxReceipt
	if x.route.body == formBody {
		limit = maxForm
	}
	if n := x.r.ContentLength; n >= 0 && n <= initialReadSize && x.r.Header.Get("Content-Encoding") == "" {
		return limit, x.srv.notes
	}
	return limit, x.srv.posts
}

// takeReceipt handles a provider's delivery receipts. There is no token: the provider's own
// signature is checked over the unchanged body.
func takeReceipt(x *exchange) error {
	if err := x.srv.deps.Receipts[x.r.PathValue("provider")].Take(x.r, x.body.data); err != nil {
		return err
	}
	return x.bytes(http.StatusNoContent, nil)
}
