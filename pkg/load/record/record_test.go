package record

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)

const seconds = 30

// hour returns an hour of traffic: single messages whose rate swings, a campaign, batches of several
// sizes, and scheduled reminders.
func hour(rng *rand.Rand) (ms []Message) {
	at := func(s, ms int) time.Time {
		return t0.Add(time.Duration(s)*time.Second + time.Duration(ms)*time.Millisecond)
	}
	for s := range seconds {
		for range 300 + 200*s%700 {
			user := int(math.Pow(rng.Float64(), 4) * 3000)
			ms = append(ms, Message{
				Channel: notify.Push, Category: notify.Transactional, Caller: "shop", User: fmt.Appendf(nil, "ann-%d", user), Count: 1,
				Accepted: at(s, rng.IntN(1000)), Bytes: 40 + rng.IntN(60),
			})
		}
		for b := range s % 4 {
			for range 50*b + 20 {
				ms = append(ms, Message{Channel: notify.Email, Category: notify.Digest, Caller: "bank", User: fmt.Appendf(nil, "bob-%d", rng.IntN(1e6)), Count: 1, Accepted: at(s, 100*b+7)})
			}
		}
		if s%5 == 0 {
			ms = append(ms, Message{Channel: notify.SMS, Category: notify.OTP, Caller: "shop", User: []byte("eve-1"), Count: 1, Accepted: at(s, 999), DueAfter: 4 * time.Second, Bytes: 20},
				Message{Trigger: true, Caller: "shop", Count: 1, Accepted: at(s, 1), DueAfter: time.Second, Bytes: 99})
		}
	}
	for _, size := range []int{400, 1300, 90} { // sizes of the chunks of the campaign
		base := notify.NewBase(t0)
		for range 10 {
			ms = append(ms, Message{Fanout: true, Base: base, Channel: notify.Push, Category: notify.Marketing, Caller: "shop", Count: size / 10, Accepted: at(size%20, 500), Bytes: 200})
		}
	}
	rng.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
	return ms
}

func record(t *testing.T, ms []Message) (*Recorder, string) {
	t.Helper()
	r, err := New(t0, t0.Add(seconds*time.Second), 10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ms {
		r.Add(&ms[i])
	}
	r.Add(&Message{Count: 1, Accepted: t0.Add(-time.Millisecond)})
	r.Add(&Message{Count: 1, Accepted: t0.Add(seconds * time.Second)})
	file := filepath.Join(t.TempDir(), "yesterday.yaml")
	if _, err := r.Write(file, "a test"); err != nil {
		t.Fatal(err)
	}
	return r, file
}

// replayed is a target that counts the messages that it gets.
type replayed struct {
	mu       sync.Mutex
	began    time.Time
	arrivals map[string][]int // channel and category -> messages of each second
	users    map[string]int   // user -> messages of push-transactional
	sizes    map[int]bool     // sizes of the fan-outs
}

func (r *replayed) Send(_ context.Context, q *load.Request) (load.Ack, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := q.Step.Channel + "-" + q.Step.Category
	if r.arrivals[name] == nil {
		r.arrivals[name] = make([]int, seconds)
	}
	r.arrivals[name][int(time.Since(r.began)/time.Second)] += q.Size
	if q.Step.Target == load.Fanout {
		r.sizes[q.Size] = true
	}
	if name == "push-transactional" {
		var n api.Notification
		if err := json.Unmarshal(q.Body, &n); err != nil {
			return load.Ack{}, err
		}
		r.users[n.To.UserID]++
	}
	return load.Ack{Accepted: q.Size}, nil
}

// TestReplayArrivesAsRecorded checks that a replay sends the recorded traffic. For each channel and
// category, the number of messages in each second differs by at most 1%. If a second has fewer than 100
// messages, it differs by at most one message.
func TestReplayArrivesAsRecorded(t *testing.T) {
	ms := hour(rand.New(rand.NewPCG(1, 2)))
	_, file := record(t, ms)
	want := map[string][]int{}
	users := map[uint64]uint32{}
	for i := range ms {
		m := &ms[i]
		if m.Trigger {
			continue
		}
		name := m.Channel.String() + "-" + m.Category.String()
		if want[name] == nil {
			want[name] = make([]int, seconds)
		}
		want[name][int(m.Accepted.Sub(t0)/time.Second)] += m.Count
		if name == "push-transactional" {
			users[notify.HashUser(m.User)]++
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s, err := load.ReadScenario(file)
		if err != nil {
			t.Fatal(err)
		}
		got := &replayed{arrivals: map[string][]int{}, users: map[string]int{}, sizes: map[int]bool{}, began: time.Now()}
		ignored := sink{}
		run, err := load.New(s, load.Config{Target: got, Targets: map[string]load.Target{load.Trigger: ignored}, Callback: "http://127.0.0.1:1/x"})
		if err != nil {
			t.Fatal(err)
		}
		res, err := run.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if res.Totals.Sent != res.Totals.Intended {
			t.Errorf("sent %d of %d", res.Totals.Sent, res.Totals.Intended)
		}
		if len(got.arrivals) != len(want) {
			t.Fatalf("arrivals of %v", slices.Collect(maps.Keys(got.arrivals)))
		}
		for name, each := range want {
			for second, n := range each {
				if off := math.Abs(float64(got.arrivals[name][second] - n)); off > max(1, float64(n)/100) {
					t.Errorf("%s, second %d: %d messages, not %d", name, second, got.arrivals[name][second], n)
				}
			}
		}
		if want := map[int]bool{400: true, 1300: true, 90: true}; !maps.Equal(got.sizes, want) {
			t.Errorf("fan-outs of %v", got.sizes)
		}
		byUser := map[uint64]uint32{}
		for user, n := range got.users {
			byUser[notify.HashUser([]byte(user))] = uint32(n)
		}
		was, is := skewOf(users), skewOf(byUser)
		if math.Abs(was.Top1Pct-is.Top1Pct) > 0.06 || is.Top1Pct < 0.1 { // the input is no Zipf distribution, so the fit is not exact
			t.Errorf("1%% of the users had %.3f of the messages, and have %.3f", was.Top1Pct, is.Top1Pct)
		}
	})
}

type sink struct{}

func (sink) Send(_ context.Context, q *load.Request) (load.Ack, error) {
	return load.Ack{Accepted: q.Size}, nil
}

// TestScenarioSaysWhatWasRecorded checks that a scenario contains the kinds of messages, the lengths of
// texts and the delays of scheduled messages.
func TestScenarioSaysWhatWasRecorded(t *testing.T) {
	t.Parallel()
	_, file := record(t, hour(rand.New(rand.NewPCG(1, 2))))
	s, err := load.ReadScenario(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]load.Step{}
	for _, st := range s.Phases[0].Steps {
		got[st.Name] = st
	}
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := "batch-email-digest fanout-push-marketing single-push-transactional single-sms-otp-later trigger"; strings.Join(names, " ") != want {
		t.Errorf("steps %q, want %q", names, want)
	}
	if p := got["single-push-transactional"].Payload; p.Bytes < 38 || p.Bytes > 42 || p.Max < 97 || p.Max > 101 {
		t.Errorf("texts of 40 to 99 bytes are %+v", p)
	}
	if l := got["single-sms-otp-later"].Scheduled; l == nil || l.After != load.Duration(4*time.Second) || l.Spread != 0 {
		t.Errorf("4 s later is %+v", l)
	}
	if st := got["fanout-push-marketing"]; st.Size != 1300 || st.Users.Count != 1300 {
		t.Errorf("the largest fan-out of 1,300 is %+v", st)
	}
	if got := time.Duration(s.Phases[0].Duration); got != seconds*time.Second {
		t.Errorf("it takes %v", got)
	}
}

// TestBatches checks which messages count as a batch: two or more messages with the same trace id.
// Messages without a trace id count as a batch only if there are at least as many as the parameter batch
// of New.
func TestBatches(t *testing.T) {
	t.Parallel()
	f := func(n int, trace func(i int) string, want string) {
		t.Helper()
		r, err := New(t0, t0.Add(time.Minute), 5)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			r.Add(&Message{Channel: notify.Push, Category: notify.Alert, Caller: "c", Trace: trace(i), User: []byte("u"), Count: 1, Accepted: t0})
		}
		got := ""
		for _, s := range r.Steps() {
			got += fmt.Sprint(s.step.Target, " ", s.Requests, " of ", s.step.Size, "; ")
		}
		if got != want {
			t.Errorf("%d messages: %q, want %q", n, got, want)
		}
	}
	none := func(int) string { return "" }
	f(4, none, "http-single 4 of 0; ")
	f(5, none, "http-batch 1 of 5; ")
	f(2001, none, "http-batch 3 of 1000; ")
	f(6, func(i int) string { return fmt.Sprint(i / 2) }, "http-batch 3 of 2; ")
	f(6, func(i int) string { return fmt.Sprint(i) }, "http-single 6 of 0; ")
}

// TestNothingStandsInClear checks that no written file contains a text of the input.
func TestNothingStandsInClear(t *testing.T) {
	t.Parallel()
	var ms []Message
	var secrets []string
	for i := range 200 {
		m := Message{Channel: notify.Email, Category: notify.Alert, Caller: fmt.Sprintf("caller%03d", i%7), User: fmt.Appendf(nil, "person-%03d@example.com", i), Count: 1, Accepted: t0.Add(time.Duration(i) * 17 * time.Millisecond)}
		m.Fanout, m.Base = i%3 == 0, notify.NewBase(t0)
		ms = append(ms, m)
		secrets = append(secrets, m.Caller, string(m.User), m.Base.String(), fmt.Sprint(notify.HashUser(m.User)), fmt.Sprintf("%x", notify.HashUser(m.User)))
	}
	_, file := record(t, ms)
	env := envelope(1, "the secret text")
	r, err := New(t0, t0.Add(time.Minute), 10)
	if err != nil {
		t.Fatal(err)
	}
	r.addEnvelope(&env, t0.Add(time.Second))
	other := filepath.Join(filepath.Dir(file), "log.yaml")
	if _, err := r.Write(other, "the log"); err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, "the secret text", "A title", "carol-1", "+4912345", "tpl-7", env.Chunk.Base.String(), "vip")
	files, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(file), f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range secrets {
			if strings.Contains(f.Name()+"\n"+string(b), secret) {
				t.Errorf("%s has %q:\n%.300s", f.Name(), secret, b)
			}
		}
	}
}

func envelope(n int, text string) notify.Envelope {
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{User: fmt.Appendf(nil, "carol-%d", n), Address: []byte("+4912345"), Variables: []byte(`{"name":"vip"}`)})
	return notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(t0)}, Channel: notify.Push, Category: notify.Alert, Caller: "caller000", Accepted: t0.UnixMilli(), Count: 1,
		Content: notify.Content{Title: "A title", Body: text, Template: "tpl-7"}, Receivers: w.Bytes(),
	}
}

// TestSkewIsFitted checks that skewOf finds the exponent of users that were drawn by a Zipf
// distribution. For an even distribution the exponent is 0.
func TestSkewIsFitted(t *testing.T) {
	t.Parallel()
	const users, messages = 20_000, 400_000
	rng := rand.New(rand.NewPCG(3, 4))
	for _, s := range []float64{0, 0.5, 0.8, 1, 1.1, 1.5} {
		share := make([]float64, users)
		for i := range share {
			share[i] = load.ZipfShare(users, s, float64(i+1))
		}
		counts := map[uint64]uint32{}
		for range messages {
			rank, _ := slices.BinarySearch(share, rng.Float64())
			counts[uint64(rank)]++
		}
		if got := skewOf(counts); math.Abs(got.Exponent-s) > 0.07 {
			t.Errorf("drawn with %v, fitted %+v", s, got)
		}
	}
	once := skewOf(map[uint64]uint32{1: 1, 2: 1, 3: 1})
	if u := stepUsers(&once, 1, load.Single); u.Pick != "each" || u.Count != 3 {
		t.Errorf("three users with a message each: %+v", u)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	f := func(since, until time.Time, batch int, field string) {
		t.Helper()
		_, err := New(since, until, batch)
		if notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%v", err)
		}
	}
	f(t0, t0, 10, "until")
	f(t0, t0.Add(25*time.Hour), 10, "24h")
	f(t0, t0.Add(time.Hour), 1, "batch_from")
	r, err := New(t0, t0.Add(time.Hour), 2)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.yaml")
	if _, err := r.Write(file, "nothing"); notify.KindOf(err) != notify.KindNotFound {
		t.Errorf("an empty period: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written")
	}
}

// outcomes returns an archive with one file.
func outcomes(t *testing.T, written time.Time, lines ...archive.Outcome) fs.FS {
	t.Helper()
	var raw strings.Builder
	z, err := zstd.NewWriter(&raw)
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(z)
	for i := range lines {
		if err := enc.Encode(&lines[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(archive.Manifest{File: "outcomes/d/10-1.ndjson.zst", Kind: archive.Outcomes, Number: 1, Written: written})
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"outcomes/d/10-1.json": {Data: manifest}, "outcomes/d/10-1.ndjson.zst": {Data: []byte(raw.String())}}
}

// TestArchiveAndServer checks that an archive and a server give the same scenario for the same messages.
func TestArchiveAndServer(t *testing.T) {
	t.Parallel()
	var lines []archive.Outcome
	var history pages
	for i := range 60 {
		id := notify.ID{Base: notify.NewBase(t0)}
		if i >= 20 {
			id = notify.ID{Base: notify.Base{1, byte(i / 40)}, Index: uint32(i), FanOut: true}
		}
		at := t0.Add(time.Duration(i) * time.Second)
		lines = append(lines, archive.Outcome{ID: id.String(), Caller: "shop", Channel: "push", Category: "alert", User: "ann", Accepted: at})
		history.items = append(history.items, api.Status{NotificationID: id.String(), Caller: "shop", Channel: "push", Category: "alert", UserID: "ann", AcceptedAt: at})
	}
	read := func(fill func(*Recorder) error) string {
		r, err := New(t0, t0.Add(time.Hour), 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(r); err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, s := range r.Steps() {
			out += fmt.Sprintln(s.Step, s.Requests, s.Messages)
		}
		return out
	}
	const want = "fanout-push-alert 2 40\nsingle-push-alert 20 20\n"
	if got := read(func(r *Recorder) error { return r.Archive(t.Context(), outcomes(t, t0.Add(time.Hour), lines...)) }); got != want {
		t.Errorf("archive:\n%s", got)
	}
	if got := read(func(r *Recorder) error { return r.Archive(t.Context(), outcomes(t, t0.Add(-time.Second), lines...)) }); got != "" {
		t.Errorf("an older archive was read:\n%s", got)
	}
	if got := read(func(r *Recorder) error { return r.Server(t.Context(), &history) }); got != want+"trigger 2 2\n" {
		t.Errorf("server:\n%s", got)
	}
	r, err := New(t0, t0.Add(time.Hour), 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Archive(t.Context(), outcomes(t, t0, archive.Outcome{ID: "x"})); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("an id that is none: %v", err)
	}
}

// pages is a server that returns seven messages of its history on each page.
type pages struct{ items []api.Status }

func (p *pages) Notifications(_ context.Context, q api.NotificationQuery) (api.UserHistory, error) {
	from := 0
	if q.Cursor != "" {
		fmt.Sscan(q.Cursor, &from)
	}
	to := min(from+7, len(p.items))
	out := api.UserHistory{Items: p.items[from:to]}
	if to < len(p.items) {
		out.Cursor = fmt.Sprint(to)
	}
	return out, nil
}

func (p *pages) Triggers(_ context.Context, q api.TriggerQuery) (api.TriggerPage, error) {
	if q.Cursor != "" {
		return api.TriggerPage{}, notify.Invalid("bad_cursor", "", "all there are behind the last page are older")
	}
	return api.TriggerPage{Cursor: "more", Items: []api.TriggerStatus{{CreatedAt: t0.Add(time.Second), FireAt: t0.Add(time.Minute)}, {CreatedAt: t0, FireAt: t0}, {CreatedAt: t0.Add(-time.Second)}}}, nil
}
