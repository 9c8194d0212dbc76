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

// Receipts and the forms of the operator page have no token, so anybody who reaches the API can
// send them. These requests have their own places and memory, separate from the places and memory
// of callers. Such a request gets a place only after its body has arrived. So a client that sends
// its body slowly uses only its connection and a few KiB.
const (
	maxReceipts = 256      // receipts processed at the same time
	maxReceipt  = 4 << 20  // bytes of one receipt: a batch of events from SendGrid
	maxForm     = 1 << 20  // bytes of one form; the largest form contains the spec of a plan
	postsMemory = 32 << 20 // memory for all bodies that are larger than initialReadSize or of unknown length, in bytes

	// maxReading is how many bodies of one kind are read at the same time. If there are more, the
	// body whose read has lasted longest is cut off. A provider's body arrives within a short time,
	// so it is not affected.
	maxReading = 1024
	// notesMemory is enough for all bodies of up to initialReadSize that can be in progress. So
	// such a body never waits for memory that slow or large bodies use.
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

// addBody adds a body that is read from conn. If there are maxReading bodies, it stops the read of
// the oldest body. It returns the function leave, which removes the body and reports whether its
// read was stopped. After the call of leave, conn is not used any more.
func (g *openBodies) addBody(conn *http.ResponseController) (leave func() (cutOff bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bodies.Len() >= maxReading {
		oldest := g.bodies.Remove(g.bodies.Front()).(*openBody) // the list contains only *openBody
		oldest.cutOff = true
		_ = oldest.conn.SetReadDeadline(time.Unix(1, 0)) // an error is ignored: the recorders of tests have no deadlines
	}
	b := &openBody{conn: conn}
	e := g.bodies.PushBack(b)
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.bodies.Remove(e) // does nothing if the body was cut off
		return b.cutOff
	}
}

// readOpenBody reads the body of a request without a token. Before it reads the body, it refuses
// receipts that cannot be genuine: receipts from an unknown provider, and receipts without the
// header of the signature.
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
			Msg: "too many bodies are being read, and reading this body had taken the longest",
		}
	}
	if err == nil {
		x.r.Body = io.NopCloser(bytes.NewReader(x.body.data)) // for handlers that read r.Body
		x.r.ContentLength = int64(len(x.body.data))
	}
	return err
}

// openBodyMemory returns the size limit for the body of a request without a token, and the memory
// for that body.
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

// takeReceipt processes a provider's delivery receipts. There is no token. Instead the provider's
// signature is checked over the unchanged body.
func takeReceipt(x *exchange) error {
	if err := x.srv.deps.Receipts[x.r.PathValue("provider")].Take(x.r, x.body.data); err != nil {
		return err
	}
	return x.bytes(http.StatusNoContent, nil)
}
