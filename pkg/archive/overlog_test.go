package archive

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestSharedArchive lets two processes archive into one bucket, one after the other. Each
// continues where the other stopped. A process whose row was changed meanwhile overwrites
// nothing.
func TestSharedArchive(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newBucket(t)
	first, second := w.openTo(t, b), w.openTo(t, b)
	first.cfg.Shared, second.cfg.Shared = true, true
	second.cfg.Dir = t.TempDir()
	w.add(t, 4)
	once(t, first)
	if at, err := second.Positions(t.Context()); err != nil || at[part] != 4 {
		t.Errorf("the other process sees %v, %v", at, err)
	}
	w.add(t, 2)
	if err := second.Once(t.Context()); !errors.Is(err, errRowChanged) {
		t.Fatalf("it saved over the other's row: %v", err)
	}
	once(t, second) // from the row now
	first.rowUnsure = true
	once(t, first)
	w.wantShipped(t, b, 6)
	if s := second.Status(t.Context(), time.Now()); s.Files != 4 || s.Err != nil {
		t.Errorf("%+v", s)
	}
}

// logged is a log with one partition, in which the age of each record is given.
type logged struct {
	recs  []log.Record
	start int64
}

var logPart = log.TopicPartition{Topic: "notifications-push", Partition: 1}

func (l *logged) StartOffsets(context.Context, ...string) (map[log.TopicPartition]int64, error) {
	return map[log.TopicPartition]int64{logPart: l.start}, nil
}

func (l *logged) OffsetsSince(_ context.Context, at time.Time, _ ...string) (map[log.TopicPartition]int64, error) {
	n := slices.IndexFunc(l.recs, func(r log.Record) bool { return !r.Time.Before(at) })
	if n < 0 {
		n = len(l.recs)
	}
	return map[log.TopicPartition]int64{logPart: int64(n)}, nil
}

func (l *logged) read(_ context.Context, from, to map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error {
	for i := from[logPart]; i < to[logPart]; i++ {
		if err := fn(logPart, &l.recs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *logged) add(value []byte) {
	l.recs = append(l.recs, log.Record{Topic: logPart.Topic, Partition: 1, Offset: int64(len(l.recs)), Value: value, Time: t0.Add(time.Duration(len(l.recs)) * time.Second)})
}

func TestOverLog(t *testing.T) {
	t.Parallel()
	l, w := &logged{}, newWorld(t)
	w.add(t, 6)
	for _, env := range w.past.envs {
		l.add(notify.AppendEnvelope(nil, env))
	}
	l.add([]byte("poison"))
	type gap struct{ from, to int64 }
	var gaps []gap
	over := OverLog{Offsets: l, Read: l.read, Skipped: func(_ history.Part, from, to int64) { gaps = append(gaps, gap{from, to}) }}
	read := func(from, to int64) (got []int, damaged int, err error) {
		t.Helper()
		damaged, err = over.Range(t.Context(), map[history.Part]int64{history.Part(logPart): from}, map[history.Part]int64{history.Part(logPart): to}, func(env *notify.Envelope) error {
			for i := range 6 {
				if env.Chunk.Base == base(i) {
					got = append(got, i)
				}
			}
			return nil
		})
		return got, damaged, err
	}
	if to, err := over.Settled(t.Context(), t0.Add(4*time.Second).UnixMilli()); err != nil || to[history.Part(logPart)] != 4 {
		t.Errorf("settled are %v, %v", to, err)
	}
	if got, damaged, err := read(1, 4); !slices.Equal(got, []int{1, 2, 3}) || damaged != 0 || err != nil {
		t.Errorf("%v, %d damaged, %v", got, damaged, err)
	}
	if got, damaged, err := read(4, 7); !slices.Equal(got, []int{4, 5}) || damaged != 1 || err != nil {
		t.Errorf("beside poison: %v, %d damaged, %v", got, damaged, err)
	}
	l.start = 3
	if got, damaged, err := read(1, 5); !slices.Equal(got, []int{3, 4}) || damaged != 1 || err != nil || !slices.Equal(gaps, []gap{{1, 3}}) {
		t.Errorf("behind what was removed: %v, %d damaged, %v, told of %v", got, damaged, err, gaps)
	}
	newer := notify.AppendEnvelope(nil, w.past.envs[0])
	newer[1] = notify.EnvelopeVersion + 1 // behind the tag of the first field
	l.add(newer)
	if _, _, err := read(7, 8); !errors.Is(err, notify.ErrNewer) {
		t.Errorf("a record of a newer release: %v", err)
	}
}
