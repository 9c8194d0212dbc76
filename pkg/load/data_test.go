package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

func dataOf(t *testing.T, st Step, seed uint64) *data {
	t.Helper()
	s := SingleStep("t", time.Second, st).WithDefaults()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	d := newData(&s.Phases[0].Steps[0], seed)
	d.callback, d.origin = "http://127.0.0.1:1/x?due=", time.UnixMilli(1_700_000_000_000)
	return d
}

// TestData checks that data depends only on the seed and the sequence number, and that a fan-out contains
// no user twice.
func TestData(t *testing.T) {
	t.Parallel()
	st := Step{Target: Fanout, Rate: 1, Size: 10_007, Users: Users{Count: 10_007}, Addresses: true}
	body := dataOf(t, st, 1).appendRequest(nil, 5, 5*10_007, 10_007, 0)
	if !bytes.Equal(body, dataOf(t, st, 1).appendRequest(nil, 5, 5*10_007, 10_007, 0)) {
		t.Fatal("not reproducible")
	}
	if bytes.Equal(body, dataOf(t, st, 2).appendRequest(nil, 5, 5*10_007, 10_007, 0)) {
		t.Fatal("the seed does not matter")
	}
	var doc struct {
		Receivers []struct {
			User    string `json:"user_id"`
			Address string `json:"address"`
		} `json:"receivers"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range doc.Receivers {
		if seen[r.User] || len(r.Address) != len("apns:")+64 {
			t.Fatalf("%+v", r)
		}
		seen[r.User] = true
	}
	if len(seen) != 10_007 {
		t.Fatalf("%d users", len(seen))
	}
	for users := Number(1); users < 70; users++ {
		d := dataOf(t, Step{Rate: 1, Users: Users{Count: users}}, uint64(users))
		seen := map[uint64]bool{}
		for i := range uint64(users) {
			seen[d.user(i)] = true
		}
		if len(seen) != int(users) {
			t.Errorf("%v users: only %d have a turn", users, len(seen))
		}
	}
}

// TestBodies checks that bodies are JSON which the types of the API read.
func TestBodies(t *testing.T) {
	t.Parallel()
	later := &LaterSpec{After: Duration(time.Minute)}
	for _, st := range []Step{
		{Target: Single, Channel: "push", Addresses: true, Ordered: true, Users: Users{Count: 64}},
		{Target: Single, Channel: "sms", Addresses: true, Payload: Payload{Bytes: 10, Max: 200}},
		{Target: Single, Channel: "email", Addresses: true, Scheduled: later},
		{Target: Batch, Size: 10, Mix: []Share{{70, "push", "transactional"}, {20, "email", "transactional"}, {10, "sms", "otp"}}},
		{Target: Fanout, Size: 10, Addresses: true, Channel: "email", Scheduled: later},
		{Target: Schedule}, {Target: Trigger}, {Target: Single, Triggers: 0.5},
	} {
		st.Rate = 1
		d := dataOf(t, st, 3)
		for n := range uint64(20) {
			b := d.appendRequest(nil, n, n*uint64(d.step.Size), d.step.Size, time.Second)
			var err error
			switch d.kindOf(n) {
			case kindTrigger:
				var v api.Trigger
				if err = json.Unmarshal(b, &v); err == nil && (v.FireAt == nil || v.CallbackURL != fmt.Sprintf("http://127.0.0.1:1/x?due=%d", v.FireAt.UnixMilli())) {
					err = fmt.Errorf("%+v", v)
				}
			case kindSingle:
				var v api.Notification
				err = json.Unmarshal(b, &v)
				due, is := d.scheduledTime(n, time.Second)
				if err == nil && (v.Channel == "" || v.Content.Body == "" || is != (v.ScheduledAt != nil) || is && !v.ScheduledAt.Equal(due)) {
					err = fmt.Errorf("%+v", v)
				}
			default:
				if !json.Valid(b) {
					err = fmt.Errorf("no JSON")
				}
			}
			if err != nil {
				t.Fatalf("%+v request %d: %v\n%s", st, n, err, b)
			}
		}
	}
}

// TestSingles checks that singleBodies makes the same bodies as request, for segments, too.
func TestSingles(t *testing.T) {
	t.Parallel()
	whole := 0
	for _, st := range []Step{
		{Target: Single, Payload: Payload{Text: "hello"}},
		{Target: Null, Payload: Payload{Text: "hello"}, Users: Users{Count: 64}},
		{Target: Null, Payload: Payload{Text: "hello"}, Users: Users{Count: 10, Pick: "uniform"}},
		{Target: Null, Payload: Payload{Text: "hello"}, Triggers: 0.5},
		{Target: Null, Payload: Payload{Text: "hello"}, Mix: []Share{{70, "push", "transactional"}, {30, "email", "transactional"}}},
		{Target: Null, Payload: Payload{Text: "hello"}, Scheduled: &LaterSpec{After: Duration(time.Minute)}},
		{Target: Single, Payload: Payload{Bytes: 10, Max: 200}},
		{Target: Single, Channel: "push", Addresses: true, Payload: Payload{Text: "hello"}},
	} {
		st.Rate = 1
		d := dataOf(t, st, 3)
		for _, apart := range []uint64{1, 3, 64, 100} {
			const first = 5
			s := d.singles(nil, first, apart)
			if s.whole != nil {
				whole++
			}
			for i := range uint64(300) {
				n := first + i*apart
				s.next(n, time.Second)
				if want := d.appendRequest(nil, n, n, 1, time.Second); string(s.body) != string(want) {
					t.Fatalf("%+v, %d apart, message %d:\n%s, want\n%s", st, apart, n, s.body, want)
				}
			}
		}
	}
	if whole != 2*4 {
		t.Errorf("%d walk", whole)
	}
}

// BenchmarkSingles compares singleBodies, which makes bodies one after the other, with
// data.appendRequest, which makes each body alone.
func BenchmarkSingles(b *testing.B) {
	s := SingleStep("t", time.Second, Step{Target: Null, Rate: 1, Payload: Payload{Text: "Your order is on its way."}}).WithDefaults()
	d := newData(&s.Phases[0].Steps[0], 1)
	run := func(name string, body func(n uint64)) {
		b.Run(name, func(b *testing.B) {
			n, began := uint64(0), processCPU()
			for b.Loop() {
				body(n)
				n++
			}
			b.ReportMetric(float64(processCPU()-began)/float64(n), "cpu-ns/message")
		})
	}
	walk, buf := d.singles(nil, 0, 1), []byte{}
	run("walk", func(n uint64) { walk.next(n, 0) })
	run("alone", func(n uint64) { buf = d.appendRequest(buf[:0], n, n, 1, 0) })
}

// TestEightDigits compares eightDigits with formatted numbers.
func TestEightDigits(t *testing.T) {
	t.Parallel()
	for i := range uint64(10_000) {
		u := i*10_000 + (i*7919+1)%10_000 // each half takes all its values
		b := make([]byte, 8)
		if putUser(b, u); string(b) != fmt.Sprintf("%08d", u) {
			t.Fatalf("%d is written %q", u, b)
		}
	}
}

// TestWalk checks that appendUsers writes the same bytes as append for each user, and no other bytes.
func TestWalk(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`"u00000000",`, `00000000,`, `"uid-00000000",`, `"user-00000000",`, `{"user_id":"u00000000","address":"u00000000@example.invalid"},`} {
		p := newPattern([]byte(text))
		want, u := []byte("before"), uint64(99_999_990)
		for range 50 {
			want = append(want, strings.ReplaceAll(text, "00000000", fmt.Sprintf("%08d", u))...)
			if u += 7; u >= maxUsers {
				u -= maxUsers
			}
		}
		if got := p.appendUsers([]byte("before"), 99_999_990, 7, maxUsers, 50); string(got) != string(want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestUsers checks that messages are spread over users as the field Users of the step says.
func TestUsers(t *testing.T) {
	t.Parallel()
	const n, users = 100_000, 1000
	count := func(u Users) (top []int) {
		u.Count = users
		d := dataOf(t, Step{Rate: 1, Users: u}, 9)
		by := make([]int, users)
		for i := range uint64(n) {
			by[d.user(i)]++
		}
		slices.SortFunc(by, func(a, b int) int { return b - a })
		return by
	}
	if by := count(Users{Pick: "each"}); by[0] != n/users || by[users-1] != n/users {
		t.Errorf("each: %d to %d", by[users-1], by[0])
	}
	if by := count(Users{Pick: "uniform"}); by[0] > 2*n/users || by[users-1] < n/users/2 {
		t.Errorf("uniform: %d to %d", by[users-1], by[0])
	}
	if by := count(Users{Pick: "hot", Share: 0.3}); math.Abs(float64(by[0])-0.3*n) > 0.02*n || by[1] > n/users {
		t.Errorf("hot: %d, then %d", by[0], by[1])
	}
	by := count(Users{Pick: "zipf", Skew: 1.2})
	if by[0] < 10*by[20] || by[0] < n/10 {
		t.Errorf("zipf: %d, the twentieth %d", by[0], by[20])
	}
}

func TestMixShares(t *testing.T) {
	t.Parallel()
	d := dataOf(t, Step{Target: Single, Rate: 1, Mix: []Share{{70, "push", "transactional"}, {20, "email", "transactional"}, {10, "sms", "otp"}}, Scheduled: &LaterSpec{Share: 0.2}}, 1)
	const n = 50_000
	by, later := map[string]int{}, 0
	for i := range uint64(n) {
		by[d.variant(i).channel]++
		if _, ok := d.scheduledTime(i, 0); ok {
			later++
		}
	}
	for ch, want := range map[string]float64{"push": 0.7, "email": 0.2, "sms": 0.1} {
		if got := float64(by[ch]) / n; math.Abs(got-want) > 0.01 {
			t.Errorf("%s: %.3f of them, want %.1f", ch, got, want)
		}
	}
	if got := float64(later) / n; math.Abs(got-0.2) > 0.01 {
		t.Errorf("%.3f for later", got)
	}
}

// BenchmarkBodies measures making bodies, without sending.
func BenchmarkBodies(b *testing.B) {
	for name, st := range map[string]Step{
		"fanout":       {Target: Fanout, Size: 50_000},
		"fanout-email": {Target: Fanout, Size: 50_000, Channel: "email", Addresses: true},
		"single":       {Target: Single},
		"single-256":   {Target: Single, Payload: Payload{Bytes: 120}},
	} {
		b.Run(name, func(b *testing.B) {
			st.Rate = 1
			s := SingleStep("t", time.Second, st).WithDefaults()
			d := newData(&s.Phases[0].Steps[0], 1)
			size := d.step.Size
			var body []byte
			n, began := uint64(0), processCPU()
			for b.Loop() {
				body = d.appendRequest(body[:0], n, n*uint64(size), size, 0)
				n++
			}
			b.SetBytes(int64(len(body)))
			// Report CPU time, because on a shared machine the clock also counts the time of other processes.
			b.ReportMetric(float64(processCPU()-began)/float64(n)/float64(size), "cpu-ns/message")
		})
	}
}

// TestRunRecords checks that bucketRun records the same as recordValue for each value.
func TestRunRecords(t *testing.T) {
	t.Parallel()
	one, many := NewHistogram(), NewHistogram()
	r := bucketRun{h: many}
	for i := range 200_000 {
		v := time.Duration(notify.Mix(uint64(i))>>(20+i%40)) / 3
		for j := range 3 {
			recordValue(one, v+time.Duration(j), 1)
			r.add(v + time.Duration(j))
		}
	}
	r.add(-5)
	recordValue(one, -5, 1)
	r.flush()
	a, b := QuantilesOf(one), QuantilesOf(many)
	if a.Max, b.Max = 0, 0; a != b { // Max may differ, because a histogram keeps the exact maximum and not its bucket
		t.Errorf("%+v\n%+v", a, b)
	}
	if fmt.Sprint(one.Distribution()) != fmt.Sprint(many.Distribution()) {
		t.Error("another distribution")
	}
}

// TestOrderOverRuns checks that a later run has larger sequence numbers than an earlier run. Otherwise a
// ledger that still has the messages of the earlier run would count messages of the later run as
// reordered. It also checks that processes of one run use the same OrderBase.
func TestOrderOverRuns(t *testing.T) {
	t.Parallel()
	number := func(cfg Config) uint64 {
		cfg.Target = dryTarget{}
		r, err := New(SingleStep("s", time.Second, Step{Rate: 1, Workers: 1, Ordered: true, Addresses: true, Users: Users{Count: 4, Pick: "each"}}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.setStart()
		var body struct {
			Data struct{ Seq string }
		}
		var n struct{ Content json.RawMessage }
		if err := json.Unmarshal(r.steps[0].data.appendItem(nil, 9, time.Time{}, false), &n); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(n.Content, &body); err != nil {
			t.Fatal(err)
		}
		seq, err := strconv.ParseUint(body.Data.Seq, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	first := number(Config{StartAt: time.Now()})
	if later := number(Config{StartAt: time.Now().Add(time.Second / 2)}); later <= first+1000 {
		t.Errorf("message 9 has the number %d in a run, and %d in the next one", first, later)
	}
	if a, b := number(Config{OrderBase: 100}), number(Config{OrderBase: 100, StartAt: time.Now()}); a != b || a != 103 {
		t.Errorf("two processes of one run number message 9 by %d and %d", a, b)
	}
}
