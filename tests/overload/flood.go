package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// bulk is the configuration of the process that sends the bulk load.
type bulk struct {
	URL, Token string // URL of the API; path of the file that holds the token
	Receivers  int    // number of receivers of each fan-out
	Seconds    float64
	// If AtOnce is above 0, the process runs a closed loop with AtOnce concurrent requests: when a
	// request is answered, the next begins.
	AtOnce int
	// If Rate is above 0, the process runs an open loop: Rate requests begin each second, even if
	// earlier requests are not answered yet.
	Rate float64
}

// floodResult is the result that the process prints, as JSON, when it ends.
type floodResult struct {
	Offered, Accepted int64 // numbers of receivers
	Refused           int64 // number of answers with status 429 or 503
	Timeouts          int64 // number of requests without an answer in time
	GivenUp           int64 // number of fan-outs that were not accepted before the end
	Took              float64
	Fans              []acceptedFanout
}

type acceptedFanout struct {
	ID       string // id of the first receiver, without the receiver's index
	Accepted int    // number of receivers
}

func (f floodResult) String() string {
	return fmt.Sprintf("%.0f receivers a second accepted of %.0f offered, %d requests refused, %d timed out, %d fan-outs given up",
		float64(f.Accepted)/f.Took, float64(f.Offered)/f.Took, f.Refused, f.Timeouts, f.GivenUp)
}

// run starts another process, which sends the bulk load with the lowest priority, and waits
// for its result.
func (b bulk) run(ctx context.Context) (out floodResult) {
	what := rig.Must(json.Marshal(b))
	var said bytes.Buffer
	c := exec.CommandContext(ctx, "nice", "-n", "39", rig.Must(os.Executable()), "-flood", string(what))
	c.Stdout, c.Stderr = &said, os.Stderr
	p := rig.Must(rig.Spawn(c))
	rig.Ok(p.Wait(time.Duration(b.Seconds*float64(time.Second)) + rig.Patience))
	rig.Ok(json.Unmarshal(said.Bytes(), &out))
	return out
}

// answers is an http.RoundTripper that counts refusals and missing answers of every try of a
// request. The client reports only the last try.
type answers struct {
	http.RoundTripper
	refused, unanswered atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(r)
	switch {
	case err != nil && r.Context().Err() == nil:
		a.unanswered.Add(1)
	case err == nil && (resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests):
		a.refused.Add(1)
	}
	return resp, err
}

// flood sends the bulk load. The text config is the JSON of a bulk. When the load ends, flood
// writes a floodResult as JSON to the output.
func flood(ctx context.Context, config string, output io.Writer) error {
	var b bulk
	if err := json.Unmarshal([]byte(config), &b); err != nil {
		return err
	}
	token, err := os.ReadFile(b.Token)
	if err != nil {
		return err
	}
	via := &answers{RoundTripper: api.NewTransport(0)}
	cl := &api.Client{
		BaseURL: b.URL, Retries: 1000,
		Token:      func(context.Context) (string, error) { return strings.TrimSpace(string(token)), nil },
		HTTPClient: &http.Client{Transport: via, Timeout: 30 * time.Second},
	}
	body := bodyOf(b.Receivers)
	run := notify.NewBase(time.Now()).String()
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, time.Duration(b.Seconds*float64(time.Second)))
	defer stop()
	var mu sync.Mutex
	var out floodResult
	one := func(n int) {
		reply, err := cl.Post(ctx, "/v1/notifications:fanout", api.TypeJSON, body, fmt.Sprintf("%s-%d", run, n))
		var made api.FanoutResult
		if err == nil {
			err = json.Unmarshal(reply.Body, &made)
		}
		mu.Lock()
		defer mu.Unlock()
		out.Offered += int64(b.Receivers)
		if err != nil {
			out.GivenUp++
			return
		}
		out.Accepted += int64(made.Accepted)
		id, _ := notify.ParseID(made.FirstID)
		out.Fans = append(out.Fans, acceptedFanout{notify.ID{Base: id.Base}.String(), made.Accepted})
	}
	var wg sync.WaitGroup
	var next atomic.Int64
	for range b.AtOnce {
		wg.Go(func() {
			for ctx.Err() == nil {
				one(int(next.Add(1)))
			}
		})
	}
	for n := 0; b.Rate > 0; n++ {
		if rig.Pause(ctx, time.Until(began.Add(time.Duration(float64(n)/b.Rate*float64(time.Second))))) != nil {
			break
		}
		wg.Go(func() { one(n) })
	}
	wg.Wait()
	out.Took = time.Since(began).Seconds()
	out.Refused, out.Timeouts = via.refused.Load(), via.unanswered.Load()
	return json.NewEncoder(output).Encode(out)
}

// bodyOf returns the request body of a fan-out. All fan-outs use the same body, because making
// a body costs more than sending it.
func bodyOf(receivers int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"channel":"push","category":"marketing","content":{"body":"Everything must go."},"receivers":[`)
	for i := range receivers {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"user_id":"f%08d","address":"fcm:f%08d"}`, i, i)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}
