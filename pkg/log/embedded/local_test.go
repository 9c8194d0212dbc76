package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// rolling is a broker on disk whose files are small.
func rolling(t *testing.T) *Broker {
	return open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"t": 2}, SegmentBytes: 4 << 10, Durability: PageCache})
}

func (b *Broker) producer(t *testing.T) *log.Producer {
	t.Helper()
	p, err := log.NewProducer(log.ProducerConfig{
		Conn: log.Conn{Brokers: []string{b.Addr()}, Dial: b.Dial}, AppendTimeout: time.Minute, Appended: b.Appended,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// mixed appends records of all kinds to both partitions: with and without key,
// value, headers and time, small and large.
func mixed(t *testing.T, b *Broker) {
	t.Helper()
	for round := range 5 {
		p := b.producer(t)
		for i := range 12 {
			var recs []log.Record
			for k := range 1 + 5*(i%3) {
				r := log.Record{Topic: "t", Partition: int32(k % 2), Value: []byte(strings.Repeat(fmt.Sprint(round, i, k, " "), 1+i*40))}
				if k%3 == 1 {
					r.Key, r.Time = []byte("key"), time.Now().Add(time.Duration(k-i)*time.Second) // the client counts its timeout from there
				}
				if k%4 == 2 {
					r.Headers = []log.Header{{Key: "a", Value: []byte("1")}, {Key: "none"}}
				}
				recs = append(recs, r)
			}
			if i == 7 {
				recs[0].Value = []byte(strings.Repeat("large ", 30_000))
			}
			if err := p.Append(t.Context(), recs); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// compressed appends records as a client of the socket may: in compressed batches.
func compressed(t *testing.T, b *Broker) {
	t.Helper()
	for _, codec := range []kgo.CompressionCodec{kgo.Lz4Compression(), kgo.ZstdCompression(), kgo.SnappyCompression(), kgo.GzipCompression()} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.Dialer(b.Dial), kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		for k := range 10 {
			r := &kgo.Record{Topic: "t", Partition: int32(k % 2), Value: []byte(strings.Repeat("compressed ", 1+k*20)), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}}}
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			b.Appended(log.TopicPartition{Topic: "t", Partition: r.Partition}, r.Offset+1)
		}
		cl.Close()
	}
}

// readAll reads every partition from the offsets on to its end.
func readAll(t *testing.T, conn log.Conn, from map[log.TopicPartition]int64) map[log.TopicPartition][]log.Record {
	t.Helper()
	r, err := log.NewReader(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ends, err := r.HighWater(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	got := map[log.TopicPartition][]log.Record{}
	done := errors.New("all read")
	err = r.Run(t.Context(), from, func(tp log.TopicPartition, recs []log.Record) error {
		got[tp] = append(got[tp], recs...)
		for tp := range from {
			if n := len(got[tp]); n == 0 || got[tp][n-1].Offset+1 < ends[tp] {
				return nil
			}
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	return got
}

// What is read from the files is what is fetched, from any offset, in the middle
// of a batch as well.
func TestLocalReadsWhatIsFetched(t *testing.T) {
	t.Parallel()
	b := rolling(t)
	mixed(t, b)
	compressed(t, b)
	conn := log.Conn{Brokers: []string{b.Addr()}, Dial: b.Dial}
	near := conn
	near.Local = b.Local()
	a0, a1 := log.TopicPartition{Topic: "t"}, log.TopicPartition{Topic: "t", Partition: 1}
	if n := len(segments(t, b)); n < 5 {
		t.Fatalf("%d files: nothing rolls", n)
	}
	for at := int64(0); at < 60; at += 7 {
		from := map[log.TopicPartition]int64{a0: at, a1: at / 2}
		want, got := readAll(t, conn, from), readAll(t, near, from)
		for tp := range from {
			if len(want[tp]) != len(got[tp]) || got[tp][0].Offset != from[tp] {
				t.Fatalf("%s: %d records, want %d", tp, len(got[tp]), len(want[tp]))
			}
			for i := range want[tp] {
				w, g := want[tp][i], got[tp][i]
				if !w.Time.Equal(g.Time) {
					t.Fatalf("%s@%d: %v, want %v", tp, w.Offset, g.Time, w.Time)
				}
				w.Time, g.Time = time.Time{}, time.Time{}
				if !reflect.DeepEqual(w, g) {
					t.Fatalf("%s@%d: %+v, want %+v", tp, w.Offset, g, w)
				}
			}
		}
	}
}

func segments(t *testing.T, b *Broker) []int64 {
	t.Helper()
	bases, err := segmentBases(place{"t", 0}.folder(b.cfg.Dir))
	if err != nil {
		t.Fatal(err)
	}
	return bases
}

// A batch that is written and not acknowledged is not handed out: it may be gone
// after a loss of power, and its offsets given to others.
func TestLocalWaitsForTheAcknowledgement(t *testing.T) {
	t.Parallel()
	b := rolling(t)
	b.fill(t, "t", 0, 0, 3, 100)
	tp := log.TopicPartition{Topic: "t"}
	b.Appended(tp, 2) // the third is on disk, and nobody was told
	tail, err := b.Local().Open(tp, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	f, err := tail.Next(t.Context())
	if err != nil || len(f.Records) != 2 || f.End != 2 {
		t.Fatalf("%d records, end %d: %v", len(f.Records), f.End, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if f, err := tail.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("%d records: %v", len(f.Records), err)
	}
	if err := writeEndsIfMoved(b); err != nil { // what others append is found so
		t.Fatal(err)
	}
	if f, err := tail.Next(t.Context()); err != nil || len(f.Records) != 1 || f.Records[0].Offset != 2 {
		t.Fatalf("%+v: %v", f, err)
	}
}

func TestLocalIsGone(t *testing.T) {
	t.Parallel()
	b := rolling(t)
	b.fill(t, "t", 0, 0, 40, 500)
	if err := writeEndsIfMoved(b); err != nil {
		t.Fatal(err)
	}
	tp := log.TopicPartition{Topic: "t"}
	early, err := b.Local().Open(tp, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	if f, err := early.Next(t.Context()); err != nil || f.Records[0].Offset != 0 {
		t.Fatal(f, err)
	}
	late, err := b.Local().Open(tp, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := b.TrimOnce(map[string]map[int32]int64{"t": {0: 39}}); err != nil {
		t.Fatal(err)
	}
	if bases := segments(t, b); bases[0] == 0 {
		t.Fatalf("nothing was trimmed: %v", bases)
	}
	if _, err := late.Next(t.Context()); notify.KindOf(err) != notify.KindGone {
		t.Errorf("a trimmed offset: %v", err)
	}
	for err = nil; err == nil; { // reads the file it has to its end
		_, err = early.Next(t.Context())
	}
	if notify.KindOf(err) != notify.KindGone {
		t.Errorf("a file between is trimmed: %v", err)
	}
	for _, at := range []int64{-1, 41} {
		if _, err := b.Local().Open(tp, at); notify.KindOf(err) != notify.KindGone {
			t.Errorf("offset %d: %v", at, err)
		}
	}
	if tail, err := b.Local().Open(tp, 40); err != nil {
		t.Errorf("the next offset: %v", err)
	} else {
		tail.Close()
	}
}

// A reader that meets damage stands, and takes nothing else for what was there.
func TestLocalStandsAtDamage(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}, Durability: PageCache})
	b.fill(t, "t", 0, 0, 5, 300)
	name := filepath.Join(place{"t", 0}.folder(b.cfg.Dir), "0.dat")
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at    int
		value byte
	}{{batchHeader + 100, 'x'}, {atLength, 0x7f}, {atMagic, 1}, {0, 1}} {
		damaged := slices.Clone(raw)
		damaged[len(raw)/5*2+c.at] ^= c.value // of the third batch
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		tp := log.TopicPartition{Topic: "t"}
		b.Appended(tp, 5)
		tail, err := b.Local().Open(tp, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []log.Record
		for range 10 {
			f, err := tail.Next(t.Context())
			got = append(got, f.Records...)
			if err != nil {
				break
			}
		}
		if len(got) != 2 {
			t.Errorf("byte %d: %d records", c.at, len(got))
		}
		tail.Close()
	}
}

// Two readers at the same place share what one of them reads, and go their own ways.
func TestLocalReadersShare(t *testing.T) {
	t.Parallel()
	b := rolling(t)
	mixed(t, b)
	tp := log.TopicPartition{Topic: "t"}
	var tails [2]log.Tail
	for i := range tails {
		tail, err := b.Local().Open(tp, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tail.Close() })
		tails[i] = tail
	}
	if h := b.ackedEnds[place{"t", 0}]; h.reads.open != 2 {
		t.Fatalf("%d readers", h.reads.open)
	}
	end, shared := b.ackedEnds[place{"t", 0}].end.Load(), 0
	for next := int64(0); next < end; {
		var got [2]log.Fetched
		for i := range tails {
			var err error
			if got[i], err = tails[i].Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(got[0], got[1]) {
			t.Fatalf("at %d: %d records and %d", next, len(got[0].Records), len(got[1].Records))
		}
		if &got[0].Records[0] == &got[1].Records[0] {
			shared++
		}
		next = got[0].Records[len(got[0].Records)-1].Offset + 1
	}
	if shared < 5 {
		t.Fatalf("%d reads were shared", shared)
	}
}

// Who waits for another's read goes when its own context ends.
func TestLocalReaderNeedNotWait(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}, Durability: PageCache})
	b.fill(t, "t", 0, 0, 1, 10)
	tp := log.TopicPartition{Topic: "t"}
	b.Appended(tp, 1)
	b.ackedEnds[place{"t", 0}].reads.opened()
	tail, err := b.Local().Open(tp, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	if _, mine := b.ackedEnds[place{"t", 0}].reads.claimRead(readPos{}); !mine { // and never ends
		t.Fatal("it is being read already")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tail.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// A read is kept for one other reader that comes soon, and a failure for nobody.
func TestReadsAreForgotten(t *testing.T) {
	t.Parallel()
	var r reads
	at, some := readPos{1, 2, 3}, log.Fetched{Records: make([]log.Record, 1, 5)}
	read := func(what string, want bool) *sharedRead {
		t.Helper()
		e, mine := r.claimRead(at)
		if mine != want {
			t.Fatalf("%s: to be read %v", what, mine)
		}
		return e
	}
	r.opened()
	r.finishRead(read("by the first reader", true), at, some)
	read("kept for nobody", true)
	r.opened()
	e := read("of two readers the first", true)
	r.finishRead(e, at, some)
	if got := read("the other one", false); got != e || cap(got.found.Records) != 1 {
		t.Fatal("something else is given out, or with room behind it")
	}
	e = read("taken", true)
	if other := read("under way", false); other != e {
		t.Fatal("another read is given out")
	}
	r.finishRead(e, readPos{}, log.Fetched{})
	if <-e.done; len(e.found.Records) != 0 {
		t.Fatal("a read that found nothing")
	}
	e = read("after one that failed", true)
	r.finishRead(e, readPos{}, log.Fetched{})
	r.finishRead(read("a failure that nobody waited for", true), at, some)
	for i := range int64(len(r.latest)) {
		r.claimRead(readPos{next: i})
	}
	r.finishRead(read("replaced by later ones", true), at, some)
	r.closed()
	r.opened()
	read("kept after a reader went", true)
}

// Nobody is woken for nothing, and nobody sleeps through.
func TestHeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &ackedEnd{grown: make(chan struct{})}
		got := make(chan int64, 3)
		for range 3 {
			go func() {
				end, _ := h.waitAbove(t.Context(), 4)
				got <- end
			}()
		}
		synctest.Wait()
		h.raise(4)
		synctest.Wait()
		if len(got) != 0 {
			t.Error("woken by what was there")
		}
		h.raise(9)
		h.raise(7) // late, and lower
		synctest.Wait()
		if len(got) != 3 || <-got != 9 {
			t.Error("not woken")
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := h.waitAbove(ctx, 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if h.waiting.Load() != 0 {
			t.Error("somebody is still counted")
		}
	})
}
