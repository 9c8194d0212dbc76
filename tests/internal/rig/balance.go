package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/api"
)

// Balancer is an http.RoundTripper that sends requests to each API in turn, as the load balancer of
// an installation does. If an attempt gets no answer, Balancer tries the next API. It counts the
// attempts without an answer and the answers that refuse a request.
type Balancer struct {
	hosts []string
	next  atomic.Uint64
	via   *http.Transport

	connections atomic.Int64 // attempts without an answer
	mu          sync.Mutex
	refused     map[string]int64 // answers with status 400 or above, by status, error code and route
}

// NewBalancer returns a Balancer for the APIs with these host:port addresses.
func NewBalancer(hosts ...string) *Balancer {
	return &Balancer{hosts: hosts, via: api.NewTransport(0), refused: map[string]int64{}}
}

// RoundTrip sends one request. A request with a body must have GetBody, because the body is read
// again for the next API.
func (b *Balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	first := b.next.Add(1)
	for try := range b.hosts {
		one := r.Clone(r.Context())
		one.URL.Host = b.hosts[(first+uint64(try))%uint64(len(b.hosts))]
		if r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			one.Body = body
		}
		resp, err := b.via.RoundTrip(one)
		if err == nil {
			if resp.StatusCode >= http.StatusBadRequest {
				err = b.note(one, resp)
			}
			return resp, err
		}
		b.connections.Add(1)
		if try == len(b.hosts)-1 || r.Context().Err() != nil {
			return nil, err
		}
	}
	panic("rig: NewBalancer was called without a host")
}

// note counts an answer that refuses a request. It reads the body of resp and replaces it with a
// copy.
func (b *Balancer) note(r *http.Request, resp *http.Response) error {
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	var p api.Problem
	_ = json.Unmarshal(body, &p) // an answer without an error code is counted with an empty code
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[fmt.Sprintf("%d %s %s %s", resp.StatusCode, p.Code, r.Method, strings.TrimRight(r.URL.Path, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"))]++
	return err
}

// Client returns a client that sends its requests through b, with the token of the first process. It
// repeats a request up to 100 times.
func (f *Fleet) Client(b *Balancer) *api.Client {
	cl := *f.V.Client()
	h := *cl.HTTPClient
	h.Transport = b
	cl.HTTPClient, cl.Retries = &h, 100
	return &cl
}

// Connections returns the number of attempts without an answer: they could not connect or lost
// their connection.
func (b *Balancer) Connections() int64 { return b.connections.Load() }

// Why returns a description of the refused requests, with a line for each combination of status,
// error code and route.
func (b *Balancer) Why() (text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(b.refused)) {
		text += fmt.Sprintf("  refused: %s, %d times\n", what, b.refused[what])
	}
	return text
}

// Refused returns how many answers had a status of 400 or above.
func (b *Balancer) Refused() (n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.refused {
		n += k
	}
	return n
}

// Close closes the idle connections of b.
func (b *Balancer) Close() { b.via.CloseIdleConnections() }

// HostOf returns the host:port of a URL.
func HostOf(url string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	return host
}
