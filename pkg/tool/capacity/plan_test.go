package capacity

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func compute(t *testing.T, in Input) *Sheet {
	t.Helper()
	s, err := Compute(in)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// The numbers of the source document, and beside them what the same load takes
// when it lasts, both worked out by hand.
func TestTheSourcesSheet(t *testing.T) {
	t.Parallel()
	s := compute(t, Default())
	for key, want := range map[string][2]int64{
		"api_servers":      {0, 0},
		"brokers":          {10, 30},         // 5M / 500K; x 3 copies
		"push_workers":     {18, 18},         // 3.5M / 200K = 17.5
		"push_connections": {180, 180},       // 18 x 10
		"sms_workers":      {12, 12},         // 500K / (5,000 / 120 ms)
		"sms_accounts":     {500, 500},       // 500K / 1K
		"mail_ips":         {84, 10_000},     // 1M / 120 s / 100; 1M / 100
		"mail_calls":       {9, 1000},        // 8,333 / 1,000; 1M / 1,000
		"mail_workers":     {84, 10_000},     // one an IP
		"partitions_push":  {18, 18},         //
		"partitions_sms":   {12, 12},         //
		"partitions_email": {84, 10_000},     //
		"db_shards":        {100, 100},       // 10M / 100K
		"db_nodes":         {300, 300},       // x 3
		"scheduled_rows":   {1e6, 1_000_000}, // 5M x 20%
		"scheduler_nodes":  {10, 30},         // 1M / 100K; x 3 copies
		"timer_shards":     {1, 600},         // 60M rows a minute / 100K
		"release_owners":   {1, 20},          // 1M / 50K
	} {
		l := s.Line(key)
		if l == nil || l.Count != want[0] || l.Sustained != want[1] {
			t.Errorf("%s: got %+v, want %v", key, l, want)
		}
	}
	if len(s.Lines) != 18 {
		t.Errorf("%d lines: the table above has 18", len(s.Lines))
	}
	// 84 IPs send 8,400 mails a second; 20% of 42,000.
	if l := s.Line("mail_ips"); math.Abs(l.HoldsTo-42_000) > 1e-6 || math.Abs(l.OneLost-41_500) > 1e-6 {
		t.Errorf("mail IPs hold to %v, %v with one lost", l.HoldsTo, l.OneLost)
	}
	// 17 workers push 3.4M of the 3.5M.
	if l := s.Line("push_workers"); math.Abs(l.OneLost-3.4e6/0.7) > 1e-3 || math.Abs(l.HoldsTo-3.6e6/0.7) > 1e-3 {
		t.Errorf("push workers hold to %v, %v with one lost", l.HoldsTo, l.OneLost)
	}
	if want := "breaks first: mail IPs (84), at 42,000/s of lasting load, 0.84% of 5M/s; then owners that release at 250K/s"; s.First != want {
		t.Errorf("got  %s\nwant %s", s.First, want)
	}
}

func TestWhereItDoesNotHold(t *testing.T) {
	t.Parallel()
	s := compute(t, Default())
	var keys []string
	for _, l := range s.Limits {
		keys = append(keys, l.Key)
	}
	if want := "brokers mail_ips scheduler_nodes timer_shards release_owners"; strings.Join(keys, " ") != want {
		t.Errorf("got %v, want %s", keys, want)
	}
	// (1M - 8,400) x 120 = 118,992,000 wait; the last for (1M / 8,400 - 1) x 120 s = 14,166 s.
	why := s.Limits[1].Why
	for _, want := range []string{"1M mails spread over 120s are one burst", "84 IPs send 8,400/s", "grows by 991.6K/s", "after 120s, 119M mails wait, the last of them for 3h56m"} {
		if !strings.Contains(why, want) {
			t.Errorf("%q lacks %q", why, want)
		}
	}
	// A load that the burst's count carries has no limit: an objective of a second
	// spreads nothing.
	in := Default()
	in.MailObjective, in.LogReplication, in.DBReplication, in.Scheduled = time.Second, 1, 1, 0
	if s := compute(t, in); len(s.Limits) != 0 || s.Line("mail_ips").Count != 10_000 {
		t.Errorf("%+v", s.Limits)
	}
}

func TestRowsByChunk(t *testing.T) {
	t.Parallel()
	s := compute(t, Default())
	want := []Saving{ // 2 rows a receiver; 2 a chunk of 1,000
		{0, 10e6, 300, 0},
		{0.5, 5e6 + 5e3, 153, 147}, // 5,005,000 / 100K = 50.05: 51 shards
		{0.9, 1e6 + 9e3, 33, 267},
		{0.99, 1e5 + 9900, 6, 294},
		{1, 10_000, 3, 297},
	}
	if len(s.Chunks) != len(want) {
		t.Fatalf("got %+v", s.Chunks)
	}
	for i, w := range want {
		if g := s.Chunks[i]; g.Nodes != w.Nodes || g.Saved != w.Saved || g.Fanout != w.Fanout || math.Abs(g.Rows-w.Rows) > 1e-3 {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
	in := Default()
	in.Fanout = 0.7
	s = compute(t, in)
	if l := s.Line("db_nodes"); l.Count != 93 { // 3,007,000 / 100K = 30.07: 31 shards
		t.Errorf("%+v", l)
	}
	if l := s.Line("brokers"); l.Count != 4 { // 1.5M + 3,500 messages
		t.Errorf("%+v", l)
	}
	if len(s.Chunks) != 6 || s.Chunks[2].Fanout != 0.7 || s.Chunks[2].Nodes != 93 {
		t.Errorf("%+v", s.Chunks)
	}
	// A chunk of 10,000 has ten claims and an outcome.
	in.Chunk = 10_000
	if got := in.rows(1); math.Abs(got-5e6*11/10_000) > 1e-6 {
		t.Errorf("got %v", got)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	t.Parallel()
	in := Default()
	in.PushLatency = 100 * time.Millisecond // 10 x 1,000 / 0.1 = 100K
	if l := compute(t, in).Line("push_workers"); l.Count != 35 || !strings.Contains(l.How, "10 connections x 1,000 streams / 100ms") {
		t.Errorf("%+v", l)
	}
	in.DeliveryRate = 50e3
	if l := compute(t, in).Line("push_workers"); l.Count != 70 || !strings.Contains(l.How, "a process's deliveries") {
		t.Errorf("%+v", l)
	}
	in.SMSAdmitted = 0.1
	if l := compute(t, in).Line("sms_accounts"); l.Count != 50 {
		t.Errorf("%+v", l)
	}
	in.Retries = 1
	if l := compute(t, in).Line("sms_accounts"); l.Count != 100 {
		t.Errorf("%+v", l)
	}
}

func TestSensitivity(t *testing.T) {
	t.Parallel()
	has := func(s *Sheet, c Change) {
		t.Helper()
		if !slices.Contains(s.Sensitivity, c) {
			t.Errorf("%+v is not in %+v", c, s.Sensitivity)
		}
	}
	s := compute(t, Default())
	has(s, Change{"push_latency", "50ms", "55ms", "push_workers", 18, 20}) // 181,818 a worker: 19.25
	has(s, Change{"mail_ip_rate", "100", "90", "mail_ips", 84, 93})        // 92.6
	has(s, Change{"db_node_rate", "100K", "90,000", "db_nodes", 300, 336}) // 111.1: 112 shards
	has(s, Change{"rate", "5M", "5.5M", "sms_accounts", 500, 550})
}

func TestCheckNamesFieldAndRule(t *testing.T) {
	t.Parallel()
	f := func(change func(*Input), want ...string) {
		t.Helper()
		in := Default()
		change(&in)
		_, err := Compute(in)
		if err == nil || notify.KindOf(err) != notify.KindInvalid {
			t.Fatalf("got %v, want %q", err, want)
		}
		if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f(func(in *Input) { in.Push = 0.8 }, "push+email+sms: must sum to 1, not 1.1")
	f(func(in *Input) { in.Push, in.Email = 1.2, -0.3 }, "push: must be from 0 to 1, not 1.2", "email: must be from 0 to 1, not -0.3")
	f(func(in *Input) { in.Rate = 0 }, "rate: must be from 1 to 1000G, not 0")
	f(func(in *Input) { in.Rate = math.NaN() }, "rate: must be from 1 to 1000G, not NaN")
	f(func(in *Input) { in.DBReplication = 2.5 }, "db_replication: must be a whole number, not 2.5")
	f(func(in *Input) { in.MailObjective = 0 }, "mail_objective: must be from 1µs to 168h0m0s, not 0s")
	f(func(in *Input) { in.SMS = math.NaN() }, "sms: must be from 0 to 1, not NaN", "push+email+sms: must sum to 1, not NaN")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"5M": 5e6, "200K": 2e5, "1.5k": 1500, "2G": 2e9, "70%": 0.7, "1e3": 1000, "7": 7} {
		if got, err := ParseNumber(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "M", "5MM", "five", "7%K", "inf", "NaN", "0x"} {
		if got, err := ParseNumber(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.7: "0.7", 8333.3: "8,333", 999.96: "1000", 123_456: "123.5K", 5e6: "5M", 2.5e9: "2.5G", -4000: "-4,000"} {
		if got := Number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	if got := []int64{ceil(0), ceil(1e-6), ceil(17.5), ceil(3e6 * 0.1 / 100), ceil(100.001)}; !slices.Equal(got, []int64{0, 1, 18, 3000, 101}) {
		t.Errorf("got %v", got)
	}
}

// drawInput draws what Check takes.
func drawInput(t *rapid.T) Input {
	in := Default()
	for _, p := range in.Params() {
		switch p.Key {
		case "push", "email", "sms":
			continue
		}
		low := math.Max(p.min, 1e-3)
		v := math.Exp(rapid.Float64Range(math.Log(low), math.Log(p.max)).Draw(t, p.Key))
		switch {
		case p.dur != nil:
			*p.dur = min(max(time.Duration(v*float64(time.Second)), time.Duration(p.min*1e9)), time.Duration(p.max*1e9))
		case p.whole:
			*p.num = math.Trunc(v)
		default:
			*p.num = math.Min(math.Max(v, p.min), p.max)
		}
	}
	a, b := rapid.Float64Range(0, 1).Draw(t, "a"), rapid.Float64Range(0, 1).Draw(t, "b")
	in.Push, in.Email = a, (1-a)*b
	in.SMS = math.Max(0, 1-in.Push-in.Email)
	return in
}

// More load never needs fewer of anything, and the count that lasts is never
// below the other.
func TestMoreLoadNeverNeedsFewer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawInput(rt)
		less, err := Compute(in)
		if err != nil {
			rt.Fatal(err)
		}
		in.Rate = math.Min(in.Rate*rapid.Float64Range(1, 10).Draw(rt, "more"), maxRate)
		more, err := Compute(in)
		if err != nil {
			rt.Fatal(err)
		}
		for i, l := range less.Lines {
			if m := more.Lines[i]; m.Key != l.Key || m.Count < l.Count || m.Sustained < l.Sustained {
				rt.Errorf("%+v became %+v", l, m)
			}
			if in.MailObjective >= time.Second && l.Sustained < l.Count {
				rt.Errorf("%+v lasts with fewer", l)
			}
			if l.Count < 0 || l.OneLost > l.HoldsTo*(1+1e-9) {
				rt.Errorf("%+v", l)
			}
		}
	})
}

// What a sheet counts carries the load it was counted for, and one fewer does not.
func TestCountIsTheLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawInput(rt)
		in.MailObjective, in.LogReplication, in.DBReplication = time.Second, 1, 1 // then both counts say the same
		s, err := Compute(in)
		if err != nil {
			rt.Fatal(err)
		}
		for _, l := range s.Lines {
			if l.HoldsTo == 0 || l.Key == "release_owners" {
				continue
			}
			if l.HoldsTo < in.Rate*(1-1e-6) {
				rt.Errorf("%+v holds less than %v", l, in.Rate)
			}
			if l.Count > 1 && l.Key != "db_shards" && l.OneLost >= in.Rate*(1+1e-6) {
				rt.Errorf("%+v: one fewer holds %v too", l, in.Rate)
			}
		}
	})
}

func TestSharesThatDoNotSumAreRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawInput(rt)
		off := rapid.Float64Range(1e-6, 1).Draw(rt, "off")
		p := rapid.SampledFrom([]*float64{&in.Push, &in.Email, &in.SMS}).Draw(rt, "which")
		*p += off
		if _, err := Compute(in); err == nil || !strings.Contains(err.Error(), "push+email+sms: must sum to 1") {
			rt.Errorf("got %v", err)
		}
	})
}

// A larger share of fan-outs never needs more nodes of the status store.
func TestFanoutsNeverCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, err := Compute(drawInput(rt))
		if err != nil {
			rt.Fatal(err)
		}
		for i := 1; i < len(s.Chunks); i++ {
			if s.Chunks[i].Nodes > s.Chunks[i-1].Nodes || s.Chunks[i].Saved < 0 {
				rt.Errorf("%+v after %+v", s.Chunks[i], s.Chunks[i-1])
			}
		}
	})
}

func TestMeasured(t *testing.T) {
	t.Parallel()
	results := []Result{
		{ID: "P2", Work: "fan-out over HTTP, fsynced; 1.5 cores", Value: 9e6, Unit: "receivers/s"},
		{ID: "P2", Work: "the same, page cache", Value: 14e6, Unit: "receivers/s"},
		{ID: "P3", Work: "batches of 1,000 over HTTP", Value: 400e3, Unit: "records/s", Reference: 600e3},
		{ID: "P6", Work: "open loop 20 s", Value: 5e6, Unit: "receivers/s", Reference: 5e6},
		{ID: "P6", Work: "closed loop, no addresses", Value: 7e6, Unit: "receivers/s"},
		{ID: "P6", Work: "closed loop, addresses in profiles", Value: 6e6, Unit: "receivers/s"},
		{ID: "P7", Work: "timers parked, fsynced", Value: 150e3, Unit: "timers/s", Reference: 200e3},
	}
	in, from, missing, err := Measured(Default(), results)
	if err != nil {
		t.Fatal(err)
	}
	if in.APIRate != 400e3 || in.APIFanoutRate != 9e6 || in.DeliveryRate != 6e6 || in.BrokerRate != 600e3 || in.DBNodeRate != 200e3 || in.SchedulerNodeRate != 150e3 {
		t.Errorf("%+v", in)
	}
	if in.PushWorkerRate != 200e3 || !slices.Equal(missing, []string{"push_worker_rate"}) || len(from) != 6 {
		t.Errorf("%v from %+v, missing %v", in.PushWorkerRate, from, missing)
	}
	s := compute(t, in)
	for key, want := range map[string]int64{"api_servers": 13, "brokers": 9, "db_nodes": 150, "scheduler_nodes": 7} { // 12.5, 8.33, 50 x 3, 6.67
		if l := s.Line(key); l.Count != want {
			t.Errorf("%+v, want %d", l, want)
		}
	}
	in.Fanout = 0.9 // 500K/400K + 4.5M/9M = 1.75
	if l := compute(t, in).Line("api_servers"); l.Count != 2 {
		t.Errorf("%+v", l)
	}
	if _, _, _, err := Measured(Default(), results[3:4]); err == nil || !strings.HasPrefix(err.Error(), "from: has 1 figures, but none") {
		t.Errorf("got %v", err)
	}
	if _, err := ParseResults([]byte("{")); err == nil || !strings.HasPrefix(err.Error(), "from: is not a list of results") {
		t.Errorf("got %v", err)
	}
}

// The benchmark writes the lines that are looked for here: one that is worded
// anew would be missed without a word.
func TestBenchmarksWriteWhatIsRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../tests/bench/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var src strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		src.Write(b)
	}
	for _, m := range measures {
		if m.work == "" {
			continue // picked by its id and unit
		}
		missing := slices.DeleteFunc([]string{`ID: "` + m.id + `"`, `"` + m.work, `Unit: "` + m.unit + `"`}, func(part string) bool {
			return strings.Contains(src.String(), part)
		})
		if len(missing) > 0 {
			t.Errorf("no benchmark writes a line of %s that begins with %q in %s", m.id, m.work, m.unit)
		}
	}
}

// A count that an int64 cannot hold becomes maxCount, not a negative number.
func TestCountsHaveALimit(t *testing.T) {
	t.Parallel()
	if n := times(ceil(1e30), 2630); n != maxCount {
		t.Errorf("the product is %d", n)
	}
	if n := times(3, 2630); n != 7890 {
		t.Errorf("3 times 2630 is %d", n)
	}
}
