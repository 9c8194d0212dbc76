package api

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// tired is a server that is overloaded: it takes one request in a while, refuses the others
// with Retry-After, and does not answer some at all. What it stored it answers again.
type tired struct {
	every  time.Duration
	silent int // of so many requests one gets no answer

	mu     sync.Mutex
	free   time.Time
	tries  int
	asked  int // tries that asked first
	bodies int // bodies that were sent and refused
	parts  map[string]int
	times  map[time.Time]int // of tries
}

func (s *tired) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	now := time.Now()
	s.times[now]++
	asks := r.Header.Get("Expect") == "100-continue"
	if asks {
		s.asked++
	}
	if s.tries%s.silent == 0 {
		return nil, http.ErrHandlerTimeout
	}
	h := http.Header{"Content-Type": {TypeJSON}}
	answer := func(code int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r}, nil
	}
	if now.Before(s.free) {
		if !asks {
			s.bodies++
		}
		h.Set("Retry-After", "2")
		return answer(http.StatusServiceUnavailable, `{"code":"overloaded"}`)
	}
	s.free = now.Add(s.every)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(b), `"part":`)
	part, _, _ := strings.Cut(rest, ",")
	s.parts[part]++
	return answer(http.StatusCreated, `{"first_id":"ntf_2-0","accepted":1000}`)
}

// A campaign that meets an overload ends: each part is sent again when the server says, for
// longer than Retries would last, and what is sent again at once is spread.
func TestFanoutOutlastsAnOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &tired{every: 5 * time.Second, silent: 11, parts: map[string]int{}, times: map[time.Time]int{}}
		cl := &Client{BaseURL: "http://notifyd", HTTPClient: &http.Client{Transport: s}, Retries: 5}
		const parts, size = 40, 1000
		began := time.Now()
		total, err := cl.SendFanout(t.Context(), FanoutSend{
			Fanout:   Fanout{Campaign: "cmp_1", Category: "marketing"},
			PartSize: size, InFlight: 8,
			Receivers: func(yield func(Receiver, error) bool) {
				for range parts * size {
					if !yield(Receiver{UserID: strings.Repeat("u", 100)}, nil) {
						return
					}
				}
			},
		})
		if err != nil || total.Parts != parts || len(s.parts) != parts {
			t.Fatalf("%+v, %d parts arrived, after %d tries: %v", total, len(s.parts), s.tries, err)
		}
		if s.tries < 2*parts {
			t.Fatalf("%d tries for %d parts: there was no overload", s.tries, parts)
		}
		if s.bodies > 2*parts {
			t.Errorf("%d bodies were sent in vain, %d tries asked first", s.bodies, s.asked)
		}
		most := 0
		for at, n := range s.times {
			if at.After(began) { // the first ones come together
				most = max(most, n)
			}
		}
		if most > 2 { // one that is sent again, and one that begins
			t.Errorf("%d tries came at one moment", most)
		}
	})
}

// Patience has an end: a server that refuses for good is told of.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &tired{every: 24 * time.Hour, silent: 1 << 30, free: time.Now().Add(24 * time.Hour), parts: map[string]int{}, times: map[time.Time]int{}}
		cl := &Client{BaseURL: "http://notifyd", HTTPClient: &http.Client{Transport: s}, Retries: 2, Patience: time.Minute}
		began := time.Now()
		_, err := cl.Post(t.Context(), "/v1/notifications:fanout", TypeJSON, []byte("{}"), "k")
		if took := time.Since(began); err == nil || took < 50*time.Second || took > 80*time.Second {
			t.Errorf("after %s and %d tries: %v", took, s.tries, err)
		}
	})
}
