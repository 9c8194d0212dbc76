package product

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// skewed is a proxy for a Redis server. It changes the time in the answers to the command TIME. A
// process that uses the proxy sees a Redis whose clock is wrong.
type skewed struct {
	at  string       // address of the proxy
	off atomic.Int64 // seconds that are added to the time of the server
}

// timeReply matches the answer to TIME: seconds and microseconds.
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

// pass copies the bytes of a connection in both directions until one side closes it.
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
		// An answer to TIME arrives alone and in one Read.
		if m := timeReply.FindSubmatch(out); m != nil {
			sec, _ := strconv.ParseInt(string(m[1]), 10, 64)
			out = fmt.Appendf(nil, "*2\r\n$10\r\n%d\r\n%s", sec+s.off.Load(), m[2])
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// TestClockThatIsOff starts a process whose clock is one hour fast, and then a process whose clock
// is one hour slow. Each process must own no shards and make no calls. It must not be ready, and
// the doctor must report the clock. The process must refuse triggers and scheduled pushes, and
// accept immediate pushes. When the test corrects the clock, the process must acquire all shards
// and work normally. When the clock becomes wrong again, the process must release all shards.
func TestClockThatIsOff(t *testing.T) {
	e, f := clockFleet(t)
	for _, off := range []string{"1h", "-1h"} {
		p := e.clockProcess(t, f, "clock"+off, off, "redis.addresses="+e.at("redis", 0))
		due := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond)
		id := p.trigger(f.V.Client(), due)
		// Check for 5 s. A process with a correct clock would acquire the shards within a second and
		// then call the trigger.
		for range 50 {
			if n := p.owned(); n != 0 {
				t.Fatalf("it owns %v shards with a clock that is %s off", n, off)
			}
			if err := rig.Pause(t.Context(), 100*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		if _, n := p.called(id); n != 0 {
			t.Error("the trigger was called by a process that may own nothing")
		}
		if got := p.ready(); got != http.StatusServiceUnavailable {
			t.Errorf("readyz answers %d", got)
		}
		if one := find(doctor(t, p.client), "clock"); one.Level != "fail" || one.Repair == "" {
			t.Errorf("the doctor: %+v", one)
		}
		for name, err := range p.later(due) {
			if e, _ := errors.AsType[*notify.Error](err); e == nil || e.Kind != notify.KindUnavailable || e.Code != "clock" || e.RetryAfter <= 0 {
				t.Errorf("%s off: %s: %v", off, name, err)
			}
		}
		if _, err := send(t, p.client, "clock"); err != nil {
			t.Errorf("%s off: what is due now: %v", off, err)
		}
		p.turn("0s")
		p.until("it owns all shards", func() bool { return p.owned() == 4 })
		p.until("the trigger is called", func() bool { _, n := p.called(id); return n == 1 })
		if at, _ := p.called(id); at.Before(due) {
			t.Errorf("called %s early", due.Sub(at))
		}
		if one := find(doctor(t, p.client), "clock"); one.Level != "ok" || p.ready() != http.StatusOK {
			t.Errorf("with a clock that is right: %+v, readyz %d", one, p.ready())
		}
		for name, err := range p.later(time.Now()) {
			if err != nil {
				t.Errorf("with a clock that is right: %s: %v", name, err)
			}
		}
		p.turn(off)
		p.until("it gives all shards up", func() bool { return p.owned() == 0 })
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("product case=clock limit_ms=500 off=%s owned=0 called=1 early=0 refused=2", off)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// TestServerWhoseClockIsOff checks that a process accepts all requests and owns all shards if only
// the clock of one server, Redis, is wrong.
func TestServerWhoseClockIsOff(t *testing.T) {
	e, f := clockFleet(t)
	for _, ahead := range []int64{3600, -3600} {
		clock := skew(t, e.at("redis", 0))
		clock.off.Store(ahead)
		p := e.clockProcess(t, f, fmt.Sprint("redis", ahead), "0s", "redis.addresses="+clock.at)
		p.until("it owns all shards", func() bool { return p.owned() == 4 })
		for name, err := range p.later(time.Now().Add(time.Second)) {
			if err != nil {
				t.Errorf("Redis is %d s ahead: %s: %v", ahead, name, err)
			}
		}
		if one := find(doctor(t, p.client), "clock"); one.Level != "ok" || p.ready() != http.StatusOK || p.owned() != 4 {
			t.Errorf("Redis is %d s ahead: %+v, readyz %d, %v shards", ahead, one, p.ready(), p.owned())
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("product case=clock-of-redis ahead_s=%d owned=4 refused=0", ahead)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// clockFleet starts a Redis without TLS, so that a skewed proxy can change its answers. It starts
// one process with all roles except scheduler.
func clockFleet(t *testing.T) (*estate, *rig.Fleet) {
	t.Helper()
	e := servers(t)
	if err := e.script("start", []string{"redis", "REDIS_MODE=single", "REDIS_SECURE=", fmt.Sprint("NOTIFY_REDIS_PORT=", e.ports["redis"])}); err != nil {
		t.Fatal(err)
	}
	f := e.fleet(t, e.main(t).with(plain(values{"redis.addresses": []string{e.at("redis", 0)}})), "api,worker,dispatcher,operator")
	return e, f
}

// clockProcess is a process with the roles api and scheduler. A test can change its clock.
type clockProcess struct {
	*rig.Process
	t      *testing.T
	f      *rig.Fleet
	client *api.Client
	file   string // path of a file with the error of the process's clock, such as "-1h"
}

func (e *estate) clockProcess(t *testing.T, f *rig.Fleet, name, off string, set ...string) *clockProcess {
	t.Helper()
	c := &clockProcess{t: t, f: f, file: filepath.Join(t.TempDir(), "clock")}
	c.turn(off)
	var err error
	if c.Process, err = f.Run(t.Context(), name, "api,scheduler", []string{"NOTIFYD_FAULT_CLOCK=" + c.file}, set...); err != nil {
		t.Fatal(err)
	}
	c.client = clientOf(f.V.Client(), c.API)
	c.client.Retries = 0
	return c
}

// turn sets the error of the process's clock to offset, such as "-1h". It renames a complete file,
// so that the process never reads a half-written file.
func (c *clockProcess) turn(offset string) {
	c.t.Helper()
	err := os.WriteFile(c.file+".new", []byte(offset), 0o600)
	if err == nil {
		err = os.Rename(c.file+".new", c.file)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *clockProcess) until(what string, ok func() bool) {
	c.t.Helper()
	if err := rig.Until(c.t.Context(), what, func() (bool, error) { return ok(), nil }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clockProcess) owned() float64 {
	c.t.Helper()
	m, err := c.Metrics(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return m["notifyd_timer_shards_owned"]
}

func (c *clockProcess) ready() int {
	c.t.Helper()
	resp, err := http.Get("http://" + c.Admin + "/readyz")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func (c *clockProcess) newTrigger(due time.Time) api.Trigger {
	c.t.Helper()
	url, err := c.f.V.CallbackURL(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return api.Trigger{CallbackURL: fmt.Sprintf("%s/clock?due=%d", url, due.UnixMilli()), FireAt: &due, Exact: true}
}

// trigger registers a trigger and returns its id. The parameter other is a client of another
// process, whose clock is correct.
func (c *clockProcess) trigger(other *api.Client, due time.Time) string {
	c.t.Helper()
	made, err := other.Trigger(c.t.Context(), c.newTrigger(due), "")
	if err != nil {
		c.t.Fatal(err)
	}
	return made.TriggerID
}

// later registers a trigger and schedules a push at this process, both with the given due time. It
// returns the two errors.
func (c *clockProcess) later(due time.Time) map[string]error {
	c.t.Helper()
	_, trigger := c.client.Trigger(c.t.Context(), c.newTrigger(due), "")
	_, schedule := c.client.Send(c.t.Context(), api.Notification{
		Channel: "push", Category: "otp", To: api.Receiver{UserID: "clock", Address: "apns:" + strings.Repeat("ab", 32)}, Content: api.Content{Body: "hello"}, ScheduledAt: &due,
	}, "")
	return map[string]error{"a trigger": trigger, "a schedule": schedule}
}

// called returns the time of the last call of a trigger, and the number of its calls.
func (c *clockProcess) called(id string) (at time.Time, n int) {
	c.t.Helper()
	if err := c.f.V.Calls(c.t.Context(), func(v rig.Call) {
		if v.ID == id {
			at, n = v.At, n+1
		}
	}); err != nil {
		c.t.Fatal(err)
	}
	return at, n
}
