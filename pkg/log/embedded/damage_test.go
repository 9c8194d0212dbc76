package embedded

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log"
)

// offsetsOf reads a partition: the offsets of records, and of markers.
func (b *Broker) offsetsOf(t *testing.T, topic string) (records, markers []int64, end int64) {
	t.Helper()
	cl := b.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := listed.Lookup(topic, 0)
	for next := int64(0); next < at.Offset; {
		fs := cl.PollFetches(t.Context())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			rec := log.Record{Value: r.Value}
			for _, h := range r.Headers {
				rec.Headers = append(rec.Headers, log.Header{Key: h.Key, Value: h.Value})
			}
			if rec.Lost() {
				markers = append(markers, r.Offset)
				return
			}
			records = append(records, r.Offset)
			var n int64
			if _, err := fmt.Sscanf(string(r.Value), "%d ", &n); err != nil || n != r.Offset {
				t.Errorf("offset %d holds %.10q", r.Offset, r.Value)
			}
		})
	}
	return records, markers, at.Offset
}

// Ten records of a thousand bytes in five segments, a crash or a stop, and
// damage: what is acknowledged and gone is named, what is not is told from it,
// the rest stays, and no offset is given out again.
func TestDamageIsFoundAndMended(t *testing.T) {
	t.Parallel()
	const topic = "a-b"
	at := func(dir, file string) string { return filepath.Join(dir, "partitions", topic+"-0", file) }
	change := func(t *testing.T, name string, f func(raw []byte) []byte) {
		t.Helper()
		raw, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, f(raw), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flip := func(file string, pos int) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			change(t, at(dir, file), func(raw []byte) []byte { raw[(pos+len(raw))%len(raw)] ^= 4; return raw })
		}
	}
	cut := func(file string, n int) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			change(t, at(dir, file), func(raw []byte) []byte { return raw[:len(raw)-n] })
		}
	}
	grow := func(file string, more []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			change(t, at(dir, file), func(raw []byte) []byte { return append(raw, more...) })
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	all := func(fs ...func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, f := range fs {
				f(t, dir)
			}
		}
	}
	zero := func(file string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, file), make([]byte, 20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	type lost = [2]int64
	type test struct {
		name   string
		damage func(t *testing.T, dir string)
		lost   []lost
		torn   int
	}
	tests := []test{
		{"nothing", func(*testing.T, string) {}, nil, 0},
		{"a bit in the middle of the first segment", flip("0.dat", 500), []lost{{0, 1}}, 0},
		{"a bit at its end", flip("0.dat", -5), []lost{{1, 2}}, 0},
		{"two bits", all(flip("0.dat", 500), flip("4.dat", 1500)), []lost{{0, 1}, {5, 6}}, 0},
		{"a bit of a header", flip("2.dat", 3), nil, 0},
		{"a bit in the first record of the last segment", flip("8.dat", 500), []lost{{8, 9}}, 0},
		{"a bit in the last record", flip("8.dat", -5), []lost{{9, 10}}, 0},
		{"the last record is cut", cut("8.dat", 7), []lost{{9, 10}}, 0},
		{"the last record is missing", func(t *testing.T, dir string) {
			change(t, at(dir, "8.dat"), func(raw []byte) []byte { return raw[:len(raw)/2] })
		}, []lost{{9, 10}}, 0},
		{"a segment in the middle is missing", remove("partitions/a-b-0/4.dat"), []lost{{4, 6}}, 0},
		{"the first segment is missing", remove("partitions/a-b-0/0.dat", "partitions/a-b-0/0.idx"), []lost{{0, 2}}, 0},
		{"the first two are missing", remove("partitions/a-b-0/0.dat", "partitions/a-b-0/0.idx", "partitions/a-b-0/2.dat"), []lost{{0, 4}}, 0},
		{"the last segment is missing", remove("partitions/a-b-0/8.dat", "partitions/a-b-0/8.idx"), []lost{{8, 10}}, 0},
		{"the partition is missing", remove("partitions/a-b-0"), []lost{{0, 10}}, 0},
		{"an unfinished write", grow("8.dat", []byte("\x00\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x03\xe8 begun")), nil, 1},
		{"room that was never written", grow("8.dat", make([]byte, 4096)), nil, 1},
		{"an index", flip("2.idx", 3), nil, 0},
		{"no index", remove("partitions/a-b-0/2.idx", "partitions/a-b-0/8.idx"), nil, 0},
		// What lists the partitions follows from their folders.
		{"no meta", remove(metaFile), nil, 0},
		{"no topics", remove(topicsFile), nil, 0},
		{"neither", remove(metaFile, topicsFile), nil, 0},
		{"neither, and no partition", remove(metaFile, topicsFile, "partitions/a-b-0"), []lost{{0, 10}}, 0},
		{"neither, and a bit in the last record", all(remove(metaFile, topicsFile), flip("8.dat", -5)), []lost{{9, 10}}, 0},
		{"meta and topics of zeros", all(zero(metaFile), zero(topicsFile)), nil, 0},
		{"what is not needed", all(zero("acls.json"), zero("sasl.json"), zero("quotas.json"), zero("broker_configs.json"), zero("seq_windows.json")), nil, 0},
		{"topics of another name", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, topicsFile), func(raw []byte) []byte { return bytes.ReplaceAll(raw, []byte(topic), []byte("a_b")) })
		}, nil, 0},
		{"topics without partitions", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, topicsFile), func(raw []byte) []byte {
				return bytes.ReplaceAll(raw, []byte(`"partitions":1`), []byte(`"partitions":0`))
			})
		}, nil, 0},
		{"no ends, a bit in the middle", all(remove("ends.0", "ends.1"), flip("2.dat", 500)), []lost{{2, 3}}, 0},
	}
	// What a stop leaves knows the end too.
	stopped := test{"no ends, a bit in the last record", all(remove("ends.0", "ends.1"), flip("8.dat", -5)), []lost{{9, 10}}, 0}
	for how, tests := range map[string][]test{"stop": append(tests, stopped), "kill": tests} {
		for _, c := range tests {
			t.Run(how+", "+c.name, func(t *testing.T) {
				t.Parallel()
				cfg := Config{Dir: t.TempDir(), Topics: map[string]int{topic: 1}, SegmentBytes: 1500}
				b := open(t, cfg)
				cfg.StoreID = b.StoreID()
				b.fill(t, topic, 0, 0, 10, 1000)
				var done kadm.Offsets
				done.Add(kadm.Offset{Topic: topic, At: 3, LeaderEpoch: -1})
				if err := kadm.NewClient(b.client(t)).CommitAllOffsets(t.Context(), "group", done); err != nil {
					t.Fatal(err)
				}
				if err := writeEndsIfMoved(b); err != nil { // as Run does
					t.Fatal(err)
				}
				if how == "kill" {
					cfg.Dir = crash(t, cfg.Dir)
				}
				b.Close()
				c.damage(t, cfg.Dir)

				b = open(t, cfg)
				var got []lost
				for _, l := range b.Losses() {
					got = append(got, lost{l.From, l.To})
					if l.Topic != topic || l.Partition != 0 || !reflect.DeepEqual(l.Committed, map[string]int64{"group": 3}) {
						t.Errorf("%+v", l)
					}
					if l.File == "" {
						continue
					}
					if _, err := os.Stat(filepath.Join(cfg.Dir, l.File)); err != nil {
						t.Error(err)
					}
				}
				if !slices.Equal(got, c.lost) || len(b.Torn()) != c.torn || len(b.Truncated()) != 0 {
					t.Errorf("lost %v, want %v; torn %v, want %d; truncated %v", got, c.lost, b.Torn(), c.torn, b.Truncated())
				}
				records, markers, end := b.offsetsOf(t, topic)
				var want, marked []int64
				for o := range int64(10) {
					if !slices.ContainsFunc(c.lost, func(l lost) bool { return l[0] <= o && o < l[1] }) {
						want = append(want, o)
					}
				}
				for _, l := range c.lost {
					marked = append(marked, l[1]-1)
				}
				if !slices.Equal(records, want) || !slices.Equal(markers, marked) || end != 10 {
					t.Errorf("the log holds %v, marked %v, to %d; want %v, marked %v, to 10", records, markers, end, want, marked)
				}
				b.fill(t, topic, 0, 10, 1, 100) // checked by the next read
				b.Close()

				b = open(t, cfg) // the next start finds it mended, and has not forgotten
				if len(b.Losses()) != len(c.lost) || len(b.Torn()) != 0 {
					t.Errorf("the next start: lost %v, torn %v", b.Losses(), b.Torn())
				}
				if records, _, end := b.offsetsOf(t, topic); end != 11 || !slices.Equal(records, append(want, 10)) {
					t.Errorf("the next start: %v to %d", records, end)
				}
			})
		}
	}
}

// Where all that tells of a partition's end is gone but how far a group has read,
// what is known of it is named, and no offset below is given out again.
func TestPositionsTellOfALoss(t *testing.T) {
	t.Parallel()
	const topic = "a-b"
	for how, kept := range map[string]map[string]map[int32]int64{"group": nil, "kept": {topic: {0: 4}}} {
		cfg := Config{Dir: t.TempDir(), Topics: map[string]int{topic: 1}}
		b := open(t, cfg)
		cfg.StoreID = b.StoreID()
		b.fill(t, topic, 0, 0, 10, 100)
		want := int64(4)
		if how == "group" {
			want = 7
			var done kadm.Offsets
			done.AddOffset(topic, 0, want, -1)
			if err := kadm.NewClient(b.client(t)).CommitAllOffsets(t.Context(), "group", done); err != nil {
				t.Fatal(err)
			}
		}
		b.Close()
		for _, name := range []string{"ends.0", "ends.1", "partitions", metaFile, topicsFile} {
			if err := os.RemoveAll(filepath.Join(cfg.Dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		cfg.Kept = kept
		b = open(t, cfg)
		if ls := b.Losses(); len(ls) != 1 || ls[0].Topic != topic || ls[0].From != 0 || ls[0].To != want {
			t.Errorf("%s: %+v", how, ls)
		}
		if _, markers, end := b.offsetsOf(t, topic); end != want || len(markers) != 1 {
			t.Errorf("%s: markers %v, end %d, want %d", how, markers, end, want)
		}
	}
}

// Segments that a trim took away are not missed, also when the process is killed
// before the ends are written down again; those that somebody removed are.
func TestTrimIsNoLoss(t *testing.T) {
	t.Parallel()
	const topic = "a-b"
	for _, removed := range []bool{false, true} {
		cfg := Config{Dir: t.TempDir(), Topics: map[string]int{topic: 1}, SegmentBytes: 1500}
		b := open(t, cfg)
		cfg.StoreID = b.StoreID()
		b.fill(t, topic, 0, 0, 10, 1000)
		if err := writeEndsIfMoved(b); err != nil {
			t.Fatal(err)
		}
		if err := b.TrimOnce(map[string]map[int32]int64{topic: {0: 5}}); err != nil {
			t.Fatal(err)
		}
		cfg.Dir = crash(t, cfg.Dir)
		b.Close()
		var want [][2]int64
		if removed {
			for _, name := range []string{"4.dat", "4.idx"} {
				if err := os.Remove(filepath.Join(cfg.Dir, "partitions", topic+"-0", name)); err != nil {
					t.Fatal(err)
				}
			}
			want = [][2]int64{{5, 6}}
		}
		b = open(t, cfg)
		var got [][2]int64
		for _, l := range b.Losses() {
			got = append(got, [2]int64{l.From, l.To})
		}
		if !slices.Equal(got, want) {
			t.Errorf("removed %v: lost %v, want %v", removed, got, want)
		}
		b.Close()
	}
}

// A damaged last record that nobody wrote down as an end: the index entry tells
// it from a torn write, since a kill takes nothing back; another boot of the
// machine may have.
func TestDamagedEndThatWasNotNoted(t *testing.T) {
	t.Parallel()
	for boot, want := range map[string]int{bootID(): 1, "another": 0} {
		if boot == "" {
			t.Skip("this system does not tell its boots apart")
		}
		cfg := Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}}
		b := open(t, cfg)
		cfg.StoreID = b.StoreID()
		if err := writeEnds(cfg.Dir, &ends{Seq: b.ends.Seq + 1, Boot: boot, Parts: b.ends.Parts}); err != nil {
			t.Fatal(err)
		}
		b.fill(t, "t", 0, 0, 3, 100)
		cfg.Dir = crash(t, cfg.Dir)
		file := filepath.Join(cfg.Dir, "partitions", "t-0", "0.dat")
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-1] ^= 1
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		b.Close()
		b = open(t, cfg)
		if len(b.Losses()) != want || len(b.Torn()) != 1-want {
			t.Errorf("boot %s: lost %+v, torn %+v", boot, b.Losses(), b.Torn())
		}
	}
}

// What others know of a partition's end counts: what a group committed, and
// what was kept elsewhere.
func TestEndsKnownElsewhere(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}}
	b := open(t, cfg)
	cfg.StoreID = b.StoreID()
	b.fill(t, "t", 0, 0, 3, 100)
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: "t", At: 2, LeaderEpoch: -1})
	if err := kadm.NewClient(b.client(t)).CommitAllOffsets(t.Context(), "group", done); err != nil {
		t.Fatal(err)
	}
	dir := cfg.Dir
	for kept, want := range map[int64]int64{0: 2, 3: 3} {
		cfg.Dir = crash(t, dir)
		cfg.Kept = map[string]map[int32]int64{"t": {0: kept}}
		if err := os.Truncate(filepath.Join(cfg.Dir, "partitions", "t-0", "0.dat"), 0); err != nil {
			t.Fatal(err)
		}
		b := open(t, cfg)
		if ls := b.Losses(); len(ls) != 1 || ls[0].From != 0 || ls[0].To != want || ls[0].Kept != kept || ls[0].Below(2) != 2 {
			t.Errorf("kept %d: %+v", kept, ls)
		}
	}
}

// The ends are written down while the broker runs, in two files in turn: one
// that a crash spoiled does not matter.
func TestEndsAreNoted(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}}
	b := open(t, cfg)
	end := func() int64 {
		e, err := readEnds(cfg.Dir)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := e.of(place{"t", 0})
		return at.End
	}
	for i := range 4 {
		b.fill(t, "t", 0, i, 1, 100)
		if err := writeEndsIfMoved(b); err != nil {
			t.Fatal(err)
		}
		if got := end(); got != int64(i+1) {
			t.Errorf("noted %d, want %d", got, i+1)
		}
	}
	if err := os.Truncate(endsFile(cfg.Dir, b.ends.Seq), 20); err != nil {
		t.Fatal(err)
	}
	if got := end(); got != 3 {
		t.Errorf("with one file spoiled: %d, want the one before", got)
	}
}
