package provider

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"golang.org/x/net/http2"
)

// twin sends pushes over net/http, which is assumed to speak HTTP/2 correctly. It makes its
// requests from the call, not from what our client would send, and classifies answers with the
// same tables.
type twin struct {
	of  pusher
	rt  *http.Transport
	url *url.URL
	// make returns path, header and body of an item.
	make func(call *notify.Call, it *notify.Item) (string, http.Header, []byte)
}

func newTwin(t *testing.T, of pusher) *twin {
	e := of.push.Endpoint
	w := &twin{of: of, rt: e.transport(), url: of.base}
	w.rt.Protocols = new(http.Protocols)
	w.rt.Protocols.SetHTTP2(true)
	w.rt.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(w.rt.CloseIdleConnections)
	switch c := of.client.(type) {
	case *APNs:
		w.make = c.twinRequest
	case *FCM:
		w.make = c.twinRequest
	}
	return w
}

func (a *APNs) twinRequest(call *notify.Call, it *notify.Item) (string, http.Header, []byte) {
	c, err := a.newCall(call, time.Now())
	if err != nil {
		panic(err)
	}
	ac := c.(*apnsCall)
	body, err := ac.appendPayload(nil, it)
	if err != nil {
		panic(err)
	}
	id := notify.AttemptID(it.ID(), it.Key.Epoch, int(it.Addr))
	h := http.Header{
		"Apns-Topic": {a.cfg.Topic}, "Apns-Push-Type": {ac.pushKind.pushType}, "Apns-Priority": {ac.pushKind.priority},
		"Apns-Expiration": {strconv.FormatInt(apnsExpiration(call.Expires, time.Now()), 10)},
		"Apns-Id":         {fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:])},
	}
	if k := call.Content.CollapseKey; k != "" {
		h["Apns-Collapse-Id"] = []string{k}
	}
	return "/3/device/" + strings.TrimPrefix(string(it.Address), "apns:"), h, body
}

func (f *FCM) twinRequest(call *notify.Call, it *notify.Item) (string, http.Header, []byte) {
	c, err := f.newCall(call, time.Now())
	if err != nil {
		panic(err)
	}
	body, err := c.(*fcmCall).appendMessage(nil, it)
	if err != nil {
		panic(err)
	}
	return "/v1/projects/demo/messages:send", http.Header{}, body
}

func (w *twin) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	trace := traceOf(call)
	for i := range call.Items {
		it := &call.Items[i]
		tok, err := w.of.token.get(ctx)
		if err != nil {
			panic(err)
		}
		path, h, body := w.make(call, it)
		h["Authorization"], h["Content-Type"], h["User-Agent"] = []string{tok.header}, []string{"application/json"}, []string{"notifyd"}
		trace.put(h)
		ans, fail := exchange(ctx, w.rt, w.of.push.Endpoint.Timeout, withPath(w.url, path), h, body)
		if fail != nil {
			report.One(i, fail.result(w.of.provider))
			continue
		}
		r, then := w.of.meaning(&ans, time.Now())
		switch r.Class {
		case notify.ClassAccepted:
			r.Confirmed = true
		case notify.ClassDeadAddress:
			w.of.guard.correctDeadToken(it, &r, then)
		}
		if then == renewToken && r.Class == notify.ClassRetry {
			r.RetryAfter = time.Until(tok.minted.Add(w.of.token.minAge))
		}
		report.One(i, r)
	}
}

// Our client and net/http say the same to a provider.
func TestTwinSameRequests(t *testing.T) { withPushers(t, testTwinSameRequests) }

func testTwinSameRequests(t *testing.T, start func(e Endpoint, n int) pusher) {
	var mu sync.Mutex
	var seen map[string]http.Header
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		h := r.Header.Clone()
		h.Del("Content-Length") // net/http's own
		h.Set("Host", r.Host)
		seen[r.Method+" "+r.RequestURI+" "+h.Get("Apns-Collapse-Id")+" "+h.Get("Apns-Priority")+" "+string(b)] = h
	}), nil)
	c := start(e, 2)
	said := func(s Sender) map[string]http.Header {
		seen = map[string]http.Header{}
		for _, content := range []notify.Content{{Title: "T", Body: "Hi {{x}}", Variables: []byte(`{"x":1}`), CollapseKey: "k"}, {Data: []byte(`{"k":[1]}`)}, {Body: strings.Repeat("é", 1500)}} {
			for _, cat := range []notify.Category{notify.OTP, notify.Marketing} {
				call := testCall(notify.Push, content, 40, deviceToken)
				call.Category, call.Expires = cat, 1893456000123
				call.Trace, call.TraceState = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "v=x"
				allClass(t, collect(t, t.Context(), s, call), notify.ClassAccepted)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(seen)
	}
	ours, theirs := said(c), said(newTwin(t, c))
	if !reflect.DeepEqual(ours, theirs) || len(ours) < 200 {
		for key, h := range ours {
			if !reflect.DeepEqual(h, theirs[key]) {
				t.Fatalf("%s: %v, by net/http %v", key, h, theirs[key])
			}
		}
		t.Fatalf("%d requests, by net/http %d", len(ours), len(theirs))
	}
}

// same fails the test unless our client and net/http get the same result for a push. Each uses a
// server of its own in its initial state.
func same(t *testing.T, what string, endpoint func() Endpoint, start func(e Endpoint, n int) pusher, class notify.Class) {
	t.Helper()
	call := testCall(notify.Push, notify.Content{Body: "b"}, 1, deviceToken)
	results := make([]notify.Result, 2)
	for i := range results {
		c := start(endpoint(), 1)
		c.guard.noteAccepted() // else no token is dead
		s := Sender(c)
		if i == 1 {
			s = newTwin(t, c)
		}
		r := collect(t, t.Context(), s, call)[0]
		r.RetryAfter = r.RetryAfter.Round(time.Minute / 2) // of a token it is what is left
		results[i] = r
	}
	if !reflect.DeepEqual(results[0], results[1]) || results[0].Class != class {
		t.Errorf("%s: %+v, by net/http %+v, want %v", what, results[0], results[1], class)
	}
}

// Each answer of a server means the same to our client and to net/http.
func TestTwinAnswers(t *testing.T) { withPushers(t, testTwinAnswers) }

func testTwinAnswers(t *testing.T, start func(e Endpoint, n int) pusher) {
	type writer = http.ResponseWriter
	status := func(code int, body string, header ...string) func(w writer) {
		return func(w writer) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			io.WriteString(w, body)
		}
	}
	apns := func(reason string) string { return `{"reason":"` + reason + `"}` }
	fcm := func(state string) string { return `{"error":{"status":"` + state + `","message":"m"}}` }
	hang := make(chan struct{})
	defer close(hang)
	for what, x := range map[string]struct {
		do    func(w writer)
		class notify.Class
	}{
		"accepted":             {status(200, ""), notify.ClassAccepted},
		"a name":               {status(200, `{"name":"projects/demo/messages/0:7"}`), notify.ClassAccepted},
		"another success":      {status(204, ""), notify.ClassAccepted},
		"an interim answer":    {func(w writer) { w.WriteHeader(103); io.WriteString(w, `{}`) }, notify.ClassAccepted},
		"a trailer":            {func(w writer) { w.Header().Set("Trailer", "X"); io.WriteString(w, "{}"); w.Header().Set("X", "y") }, notify.ClassAccepted},
		"in pieces":            {func(w writer) { io.WriteString(w, `{"na`); w.(http.Flusher).Flush(); io.WriteString(w, `me":"n"}`) }, notify.ClassAccepted},
		"a body that is cut":   {func(w writer) { io.WriteString(w, `{"na`); w.(http.Flusher).Flush(); panic(http.ErrAbortHandler) }, notify.ClassAccepted},
		"a failure, cut":       {func(w writer) { w.WriteHeader(503); w.(http.Flusher).Flush(); panic(http.ErrAbortHandler) }, notify.ClassUnavailable},
		"a redirect":           {status(301, "", "Location", "/x"), notify.ClassConfig},
		"a page of a proxy":    {status(502, "<html>"), notify.ClassUnavailable},
		"busy, with a time":    {status(503, "", "Retry-After", "120"), notify.ClassUnavailable},
		"busy, with no number": {status(503, "", "Retry-After", "soon"), notify.ClassUnavailable},
		"a large page":         {status(500, strings.Repeat("x", 60_000)), notify.ClassUnavailable},
		"more than is kept":    {status(500, strings.Repeat("x", 3<<20)), notify.ClassUnavailable},
		"too large":            {status(413, ""), notify.ClassPermanent},
		"forbidden":            {status(403, ""), notify.ClassConfig},
		"apns: not its token":  {status(403, apns("InvalidProviderToken")), notify.ClassConfig},
		"fcm: not its token":   {status(401, fcm("UNAUTHENTICATED")), notify.ClassConfig},
		"fcm: permission":      {status(403, fcm("PERMISSION_DENIED")), notify.ClassConfig},
		"fcm: no such device":  {status(404, fcm("NOT_FOUND")), notify.ClassDeadAddress},
		"apns: no such device": {status(410, apns("Unregistered")), notify.ClassDeadAddress},
		"apns: shutdown":       {status(503, apns("Shutdown")), notify.ClassUnavailable},
		"the stream breaks":    {func(writer) { panic(http.ErrAbortHandler) }, notify.ClassAmbiguous},
		"no answer":            {func(writer) { <-hang }, notify.ClassAmbiguous},
	} {
		of, _, special := strings.Cut(what, ": ")
		if special && !strings.HasSuffix(t.Name(), of) {
			continue
		}
		same(t, what, func() Endpoint {
			_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				x.do(w)
			}), nil)
			e.Timeout = time.Minute
			if what == "no answer" {
				e.Timeout = 3 * time.Second
			}
			return e
		}, start, x.class)
	}
}

// Each event on a connection has the same effect on our client and on net/http. Both send pushes
// again that the server did not process, and no others.
func TestTwinFrames(t *testing.T) { withPushers(t, testTwinFrames) }

func testTwinFrames(t *testing.T, start func(e Endpoint, n int) pusher) {
	for what, x := range map[string]struct {
		onPush func(n int64, c *frameConn, stream uint32) // n counts the server's pushes, from 1
		class  notify.Class
		pushes int64
	}{
		"answered":           {func(_ int64, c *frameConn, stream uint32) { c.ok(stream) }, notify.ClassAccepted, 1},
		"the stream breaks":  {func(_ int64, c *frameConn, stream uint32) { c.reset(stream, http2.ErrCodeInternal) }, notify.ClassAmbiguous, 1},
		"it is cancelled":    {func(_ int64, c *frameConn, stream uint32) { c.reset(stream, http2.ErrCodeCancel) }, notify.ClassAmbiguous, 1},
		"the line is cut":    {func(_ int64, c *frameConn, _ uint32) { c.nc.Close() }, notify.ClassAmbiguous, 1},
		"GOAWAY behind it":   {func(_ int64, c *frameConn, stream uint32) { c.goAway(stream, http2.ErrCodeNo); c.ok(stream) }, notify.ClassAccepted, 1},
		"GOAWAY, then a cut": {func(_ int64, c *frameConn, stream uint32) { c.goAway(stream, http2.ErrCodeNo); c.nc.Close() }, notify.ClassAmbiguous, 1},
		"refused once": {func(n int64, c *frameConn, stream uint32) {
			if n == 1 {
				c.reset(stream, http2.ErrCodeRefusedStream)
				return
			}
			c.ok(stream)
		}, notify.ClassAccepted, 2},
		"GOAWAY before it": {func(n int64, c *frameConn, stream uint32) {
			if n == 1 {
				c.goAway(0, http2.ErrCodeNo)
				return
			}
			c.ok(stream)
		}, notify.ClassAccepted, 2},
	} {
		var sent [2]atomic.Int64 // by our client, and by net/http
		servers := 0
		same(t, what, func() Endpoint {
			n := &sent[servers]
			servers++
			return Endpoint{Timeout: time.Minute, BaseURL: newFrameServer(t, 100, func(c *frameConn, stream uint32) { x.onPush(n.Add(1), c, stream) }).url().String()}
		}, start, x.class)
		for i := range sent {
			if n := sent[i].Load(); n != x.pushes {
				t.Errorf("%s: sent %d times by %d, want %d", what, n, i, x.pushes)
			}
		}
	}
}
