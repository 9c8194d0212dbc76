package pebble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// promise is an acknowledged write, and a function that checks that it is stored.
type promise struct {
	what  string
	check func(s *Store) error
}

// promises collects the acknowledged writes.
type promises struct {
	mu   sync.Mutex
	list []promise
}

func (p *promises) add(what string, check func(*Store) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, promise{what, check})
}

func (p *promises) soFar() []promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// broken returns the acknowledged writes that are missing in a store.
func broken(s *Store, list []promise) (lost []string) {
	for _, p := range list {
		if err := p.check(s); err != nil {
			lost = append(lost, fmt.Sprintf("%s: %v", p.what, err))
		}
	}
	return lost
}

var errMissing = errors.New("missing")

func found(ok bool, err error) error {
	if err == nil && !ok {
		err = errMissing
	}
	return err
}

// A writer does one kind of write; n is different each time. It adds a promise for each
// acknowledged write and returns the error of a write that was not.
type writer func(ctx context.Context, s *Store, p *promises, n int) error

func testRow(n int, pad int) notify.Row {
	r := notify.Row{
		Key:   notify.RowKey{Chunk: notify.Chunk{Base: notify.Base{8: byte(n >> 24), 9: byte(n >> 16), 10: byte(n >> 8), 11: byte(n)}}},
		Count: 1, Done: true, Caller: "shop", Default: notify.Exception{State: notify.Sent},
	}
	if pad > 0 {
		r.Default.Receipt = string(make([]byte, pad))
	}
	return r
}

// writers has one for every writing method of every contract.
func writers() map[string]writer {
	all := laterWriters()
	maps.Copy(all, firstWriters())
	return all
}

func firstWriters() map[string]writer {
	var term, seq atomic.Uint64
	var dropped atomic.Uint64
	return map[string]writer{
		"status": func(ctx context.Context, s *Store, p *promises, n int) error {
			rows := []notify.Row{testRow(2*n, 2000), testRow(2*n+1, 0)}
			err := s.Status().Put(ctx, rows)
			if err == nil {
				p.add("row", func(s *Store) error {
					got, err := s.Status().Get(ctx, []notify.RowKey{rows[0].Key, rows[1].Key})
					return found(err == nil && got[0].Count == 1 && got[1].Count == 1, err)
				})
			}
			return err
		},
		"timer": func(ctx context.Context, s *Store, p *promises, n int) error {
			at := int64(n) * engine.MinuteMs
			id := []byte(strconv.Itoa(n))
			if err := s.Timers().Put(ctx, notify.SpreadOver(1), []engine.Timer{{FireAt: at, ID: id, Payload: make([]byte, 500)}}); err != nil {
				return err
			}
			if n%2 == 0 {
				p.add("timer", func(s *Store) error {
					got, err := s.Timers().Scan(ctx, engine.TimerPartition{Bucket: int64(n)}, engine.TimerCursor{}, math.MaxInt64, 10)
					return found(len(got) == 1, err)
				})
				return nil
			}
			err := s.Timers().Drop(ctx, engine.TimerPartition{Bucket: int64(n)})
			if err == nil {
				p.add("dropped partition", func(s *Store) error {
					got, err := s.Timers().Buckets(ctx, 0, int64(n), int64(n))
					return found(len(got) == 0, err)
				})
			}
			return err
		},
		"shard": func(ctx context.Context, s *Store, p *promises, n int) error {
			st, err := s.Timers().TakeOver(ctx, 9, term.Load(), "me")
			if err != nil {
				return err
			}
			term.Store(st.Term)
			st.Closed = int64(n)
			err = s.Timers().Advance(ctx, 9, st)
			if err == nil {
				p.add("term and mark", func(s *Store) error {
					got, err := s.Timers().Shard(ctx, 9)
					return found(got.Term >= st.Term && got.Closed >= st.Closed, err)
				})
			}
			return err
		},
		"prefs": func(ctx context.Context, s *Store, p *promises, n int) error {
			user := "u" + strconv.Itoa(n%10)
			old, _, err := s.Prefs().Get(ctx, user)
			if err != nil {
				return err
			}
			v, err := s.Prefs().Put(ctx, engine.Profile{User: user, TimeZone: strconv.Itoa(n), Version: old.Version})
			if notify.KindOf(err) == notify.KindConflict {
				return nil // the profile of another writer is stored
			}
			if err == nil {
				p.add("profile", func(s *Store) error {
					got, _, err := s.Prefs().Get(ctx, user)
					last, verr := s.Prefs().Version(ctx)
					return found(got.Version >= v && last >= v, errors.Join(err, verr))
				})
			}
			return err
		},
		"import": func(ctx context.Context, s *Store, p *promises, n int) error {
			a, b := "a"+strconv.Itoa(n), "b"+strconv.Itoa(n)
			err := s.Prefs().PutMany(ctx, []engine.Profile{{User: a}, {User: b}})
			if err == nil {
				p.add("imported profiles", func(s *Store) error {
					_, aok, aerr := s.Prefs().Get(ctx, a)
					_, bok, berr := s.Prefs().Get(ctx, b)
					return found(aok && bok, errors.Join(aerr, berr))
				})
			}
			return err
		},
		"caller": func(ctx context.Context, s *Store, p *promises, n int) error {
			id, version := strconv.Itoa(n/2), uint64(n%2)
			err := s.Callers().Put(ctx, engine.Caller{ID: id, Version: version})
			if err == nil {
				p.add("caller", func(s *Store) error {
					c, _, err := s.Callers().Get(ctx, id)
					return found(c.Version > version, err)
				})
			}
			return err
		},
		"meta": func(ctx context.Context, s *Store, p *promises, n int) error {
			name := strconv.Itoa(n)
			err := s.Meta().PutMeta(ctx, name, []byte("v"))
			if err == nil {
				p.add("meta", func(s *Store) error {
					v, err := s.Meta().GetMeta(ctx, name)
					return found(v != nil, err)
				})
			}
			return err
		},
		"idem": func(ctx context.Context, s *Store, p *promises, n int) error {
			r := engine.Reservation{Key: engine.IdemKey{Caller: "c", Key: strconv.Itoa(n)}, Owner: "me", Expires: 1 << 40}
			stored := func(want func(engine.Reservation) bool) func(*Store) error {
				return func(s *Store) error {
					got, free, err := s.Idem().Reserve(ctx, engine.Reservation{Key: r.Key}, math.MinInt64)
					return found(!free && want(got), err)
				}
			}
			if _, _, err := s.Idem().Reserve(ctx, r, 0); err != nil {
				return err
			}
			p.add("reservation", stored(func(engine.Reservation) bool { return true }))
			if _, err := s.Idem().TakeOver(ctx, r, "you", 5); err != nil {
				return err
			}
			p.add("take-over", stored(func(r engine.Reservation) bool { return r.Owner == "you" }))
			r.Owner, r.Partitions = "you", 6
			if err := s.Idem().Freeze(ctx, r); err != nil {
				return err
			}
			p.add("layout", stored(func(r engine.Reservation) bool { return r.Partitions == 6 }))
			err := s.Idem().Finish(ctx, r.Key, 201, []byte("body"), 1<<41)
			if err == nil {
				p.add("answer", stored(func(r engine.Reservation) bool { return r.Done && string(r.Body) == "body" }))
			}
			return err
		},
		"release": func(ctx context.Context, s *Store, p *promises, n int) error {
			k := engine.IdemKey{Caller: "r", Key: strconv.Itoa(n)}
			held := engine.Reservation{Key: k, Expires: 1 << 40}
			if _, _, err := s.Idem().Reserve(ctx, held, 0); err != nil {
				return err
			}
			err := s.Idem().Release(ctx, held)
			if err == nil {
				p.add("release", func(s *Store) error {
					_, free, err := s.Idem().Reserve(ctx, held, math.MinInt64)
					return found(free, err)
				})
			}
			return err
		},
		"spill": func(ctx context.Context, s *Store, p *promises, n int) error {
			if err := s.Spill().Push(ctx, []engine.Spilled{{Topic: "t", Value: make([]byte, 300)}}, 1<<40); err != nil {
				return err
			}
			mine := seq.Add(1)
			p.add("spilled record", func(s *Store) error {
				if mine <= dropped.Load() {
					return nil
				}
				got, err := s.Spill().Peek(ctx, 1<<20)
				return found(slices.ContainsFunc(got, func(r engine.Spilled) bool { return r.Seq == mine }), err)
			})
			if n%5 != 4 {
				return nil
			}
			to := mine - 2
			dropped.Store(to)
			err := s.Spill().Drop(ctx, to)
			if err == nil {
				p.add("drop", func(s *Store) error {
					got, err := s.Spill().Peek(ctx, 1)
					return found(len(got) == 0 || got[0].Seq > to, err)
				})
			}
			return err
		},
		"deadletter": func(ctx context.Context, s *Store, p *promises, n int) error {
			d := engine.DeadLetter{ID: notify.ID{Base: testRow(n, 0).Key.Chunk.Base}, Caller: "shop", State: "dead", Until: 1 << 40}
			err := s.DeadLetters().Put(ctx, []engine.DeadLetter{d})
			if err == nil {
				p.add("dead letter", func(s *Store) error {
					got, err := s.DeadLetters().Get(ctx, d.ID, 0)
					if err != nil {
						return err
					}
					feed, err := s.DeadLetters().Feed(ctx, "shop", got.Seq-1, 1)
					return found(len(feed) == 1 && feed[0].ID == d.ID, err)
				})
			}
			return err
		},
		"cancel": func(ctx context.Context, s *Store, p *promises, n int) error {
			scope := strconv.Itoa(n)
			v, err := s.Cancels().Put(ctx, engine.Cancel{Scope: scope})
			if err == nil {
				p.add("cancellation", func(s *Store) error {
					got, ok, err := s.Cancels().Get(ctx, scope)
					changes, cerr := s.Cancels().Changes(ctx, v-1, 1)
					return found(ok && got.Version == v && len(changes) == 1 && changes[0].Scope == scope, errors.Join(err, cerr))
				})
			}
			return err
		},
		"campaign": func(ctx context.Context, s *Store, p *promises, n int) error {
			base := testRow(n, 0).Key.Chunk.Base
			err := s.Campaigns().AddPart(ctx, "cmp", "shop", uint32(n), base, 1, 0, 0)
			if err == nil {
				p.add("part", func(s *Store) error {
					c, _, err := s.Campaigns().Get(ctx, "cmp")
					return found(slices.Contains(c.Bases, base) && int(c.Accepted) == len(c.Bases), err)
				})
			}
			return err
		},
		"job": func(ctx context.Context, s *Store, p *promises, n int) error {
			j, _, err := s.Jobs().Create(ctx, engine.Job{ID: strconv.Itoa(n), Kind: "k", Name: strconv.Itoa(n)})
			if err != nil {
				return err
			}
			if j, err = s.Jobs().Put(ctx, j); err != nil {
				return err
			}
			p.add("job", func(s *Store) error {
				got, ok, err := s.Jobs().Get(ctx, j.ID)
				return found(ok && got.Version == j.Version, err)
			})
			return nil
		},
	}
}

// powerLosses runs every writer against one store, cuts the power at random
// moments, and returns how many promises were looked for and which were broken.
func powerLosses(t *testing.T, cuts, unsyncedPercent int, writes *pebbledb.WriteOptions) (checked int, lost []string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(unsyncedPercent), 1))
	fs := vfs.NewCrashableMem()
	cfg := testConfig(fs)
	cfg.writes = writes
	s := mustOpen(t, cfg)
	var p promises
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	progress := make(chan struct{})
	for name, write := range writers() {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := write(context.Background(), s, &p, n); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				select {
				case progress <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	for range cuts {
		for range rng.IntN(100) {
			<-progress
		}
		// The list is read before the cut, so every write in it was acknowledged before.
		list := p.soFar()
		after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsyncedPercent, RNG: rng})
		restarted := mustOpen(t, testConfig(after))
		if len(list) > 400 { // every promise is looked at many times over the cuts
			list = append(list[len(list)-200:], list[:200]...)
		}
		checked += len(list)
		lost = append(lost, broken(restarted, list)...)
		if err := restarted.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return checked, lost
}

// TestPowerLoss: an acknowledged write of any contract survives a loss of
// power, whatever of the unsynced data the disk kept.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{0, 50} {
		checked, lost := powerLosses(t, 60, percent, nil)
		t.Logf("unsynced data kept %d%%: %d promises checked", percent, checked)
		if len(lost) > 0 || checked < 1000 {
			t.Fatalf("%d of %d promises broken, e.g. %s", len(lost), checked, lost[:min(3, len(lost))])
		}
	}
}

// TestPowerLossFindsMissingSync runs the same against a store that does not
// sync: if no broken promise is found here, TestPowerLoss proves nothing.
func TestPowerLossFindsMissingSync(t *testing.T) {
	t.Parallel()
	checked, lost := powerLosses(t, 20, 0, pebbledb.NoSync)
	t.Logf("without sync: %d of %d promises broken", len(lost), checked)
	if len(lost) < checked/4 { // of what was deleted, nothing is as good as gone
		t.Fatalf("only %d of %d promises broken without sync", len(lost), checked)
	}
}
