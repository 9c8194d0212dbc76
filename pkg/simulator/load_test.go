package simulator

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// BenchmarkAPNs measures a push from client to server in one process, with 64 callers on one
// HTTP/2 connection. Nearly all of it is net/http: 80 us on two shared cores, of which the ledger
// takes 0.2.
func BenchmarkAPNs(b *testing.B) {
	s := start(b, Config{})
	c := client(b, s, "h2")
	fan := notify.NewBase(time.Now())
	model := push(b, s, DeviceToken(1), "")
	next := make(chan uint32)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range next {
				id := notify.ID{Base: fan, Index: i, FanOut: true}.String()
				r := setBody(model, []byte(`{"aps":{"alert":"B"},"ntf":"`+id+`"}`))
				r.Header = model.Header
				resp, err := c.Do(r)
				if err != nil {
					b.Error(err)
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					b.Error(resp.Status)
				}
			}
		})
	}
	i := uint32(0)
	for b.Loop() {
		next <- i
		i++
	}
	close(next)
	wg.Wait()
	if r := s.Ledger().Base(fan, i); r.MissingN != 0 || r.Duplicates != 0 {
		b.Errorf("%+v", r)
	}
}
