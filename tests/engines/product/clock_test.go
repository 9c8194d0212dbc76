package product

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/tests/internal/fleet"
	"github.com/notifyd/notifyd/tests/internal/victim"
)

// skewed stands before a Redis and makes its clock another one: to who asks it, the
// own clock is off.
type skewed struct {
	at  string
	off atomic.Int64 // seconds that the server is ahead
}

// timeReply is the answer to TIME: seconds and microseconds.
var timeReply = regexp.MustCompile(`^\*2\r\n\$10\r\n(\d{10})\r\n(\$\d\r\n\d{1,6}\r\n)$`)

func skew(t *testing.T, to string) *skewed {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &skewed{at: l.Addr().String()}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.pass(c, to)
		}
	}()
	return s
}

// pass copies a connection; it ends when either side does.
func (s *skewed) pass(c net.Conn, to string) {
	defer c.Close()
	r, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer r.Close()
	go func() {
		_, _ = io.Copy(r, c)
		_ = r.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		out := buf[:n]
		if m := timeReply.FindSubmatch(out); m != nil { // it comes alone, in one piece
			sec, _ := strconv.ParseInt(string(m[1]), 10, 64)
			out = fmt.Appendf(nil, "*2\r\n$10\r\n%d\r\n%s", sec+s.off.Load(), m[2])
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// TestClockThatIsOff: a scheduler whose clock is off owns nothing, from its start on,
// is not ready, and the doctor says so; what is due waits. When its clock is right it
// releases that, and gives it up again when the clock goes.
func TestClockThatIsOff(t *testing.T) {
	e := servers(t)
	ctx := t.Context()
	if err := e.script("start", []string{"redis", "REDIS_MODE=single", "REDIS_SECURE=", fmt.Sprint("NOTIFY_REDIS_PORT=", e.ports["redis"])}); err != nil {
		t.Fatal(err)
	}
	f := e.fleet(t, e.main(t).with(plain(values{"redis.addresses": []string{e.at("redis", 0)}})), "api,worker,dispatcher,operator")
	clock := skew(t, e.at("redis", 0))
	clock.off.Store(-2) // the server is behind: ours is fast, and would fire early
	p, err := f.Run(ctx, "clock", "api,scheduler", nil, "redis.addresses="+clock.at)
	if err != nil {
		t.Fatal(err)
	}
	owned := func() float64 {
		m, err := p.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m["notifyd_timer_shards_owned"]
	}
	status := func() int {
		resp, err := http.Get("http://" + p.Admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	cl, urls := f.V.Client(), ""
	if urls, err = f.V.CallbackURL(ctx); err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond)
	made, err := cl.Trigger(ctx, api.Trigger{CallbackURL: fmt.Sprintf("%s/clock?due=%d", urls, due.UnixMilli()), FireAt: &due, Exact: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	called := func() (at time.Time, n int) {
		if err := f.V.Calls(ctx, func(c victim.Call) {
			if c.ID == made.TriggerID {
				at, n = c.At, n+1
			}
		}); err != nil {
			t.Fatal(err)
		}
		return at, n
	}
	// Long enough for shards to be taken, which takes a second, and for the trigger.
	for range 50 {
		if n := owned(); n != 0 {
			t.Fatalf("it owns %v shards with a clock that is 2 s fast", n)
		}
		if err := fleet.Pause(ctx, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if _, n := called(); n != 0 {
		t.Error("the trigger was called by a scheduler that may own nothing")
	}
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d", got)
	}
	there := clientOf(cl, p.API)
	if one := find(doctor(t, there), "clock"); one.Level != "fail" || one.Repair == "" {
		t.Errorf("the doctor: %+v", one)
	}
	clock.off.Store(0)
	if err := fleet.Until(ctx, "it owns all shards", func() (bool, error) { return owned() == 4, nil }); err != nil {
		t.Fatal(err)
	}
	if err := fleet.Until(ctx, "the trigger is called", func() (bool, error) {
		_, n := called()
		return n == 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	if at, _ := called(); at.Before(due) {
		t.Errorf("called %s early", due.Sub(at))
	}
	if one := find(doctor(t, there), "clock"); one.Level != "ok" || status() != http.StatusOK {
		t.Errorf("with a clock that is right: %+v, readyz %d", one, status())
	}
	clock.off.Store(3)
	if err := fleet.Until(ctx, "it gives all shards up", func() (bool, error) { return owned() == 0, nil }); err != nil {
		t.Fatal(err)
	}
	t.Logf("product case=clock limit_ms=500 off_s=2 owned=0 called=1 early=0")
	clock.off.Store(0)
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}
