// Package engines compares all engines with each other. It runs the same random programs on the
// memory engine, on Pebble and on real servers, and all results must be equal. It also runs
// notifyd over real servers.
package engines

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/store"
	"github.com/notifyd/notifyd/pkg/users"
)

// sequences counts the programs and operations counts their operations. The last line of the
// output has both numbers.
var sequences, operations atomic.Int64

// perContract is the number of programs that run for each contract. perContractShort is the number
// with -short.
const perContract, perContractShort = 25, 3

func TestMain(m *testing.M) {
	flag.Parse()
	set := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["rapid.checks"] {
		n := perContract
		if testing.Short() {
			n = perContractShort
		}
		if err := flag.Set("rapid.checks", fmt.Sprint(n)); err != nil {
			panic(err)
		}
	}
	if !set["rapid.shrinktime"] { // short, because a step on a server takes milliseconds
		_ = flag.Set("rapid.shrinktime", "20s")
	}
	code := m.Run()
	if n := sequences.Load(); n > 0 {
		fmt.Printf("metamorphic sequences=%d operations=%d engines=%s different=%d\n", n, operations.Load(), strings.Join(compared(), ","), code)
	}
	servers.close()
	os.Exit(code)
}

// engines has the contracts that one engine implements. A contract that the engine does not
// implement is nil.
type engines struct {
	name      string
	status    engine.Status
	timers    engine.Timers
	cold      engine.ColdTimers
	schedules engine.Schedules
	triggers  engine.Triggers
	letters   engine.DeadLetters
	jobs      *store.Jobs
	audit     *store.Audit
	campaigns *store.Campaigns
	cancels   users.CancelStore
	holds     *store.Holds
	meta      engine.Meta
	prefs     users.ProfileStore
	callers   engine.Callers
	idem      request.Idem
	spill     intake.Spill
	limits    limit.Limits
	lease     engine.Lease
	beats     engine.Heartbeats
	queue     func(name string, maxReceives int) engine.Queue
}

// step is one operation of a program. It returns a description of the operation and its result.
// If engines may answer an operation in different ways, the description must not show the
// difference.
type step struct {
	name string
	do   func(ctx context.Context, e *engines, k *known) (string, error)
}

// known has the values that earlier steps of a program got from one engine, for use in later steps.
// An engine chooses these values itself (versions, receipts), so the values differ between engines.
// The keys of the maps are the same for all engines.
type known struct {
	numbers map[string]uint64
	texts   map[string][]string
}

// answer describes the result of an operation. For a *notify.Error it returns only the kind,
// because the text of the error differs between engines.
func answer(text string, err error) string {
	if err == nil {
		return text
	}
	e := &notify.Error{}
	if errors.As(err, &e) {
		return "error of kind " + e.Kind.String()
	}
	return "error " + err.Error()
}

// program draws a random sequence of operations of one contract. The parameter n is the number of
// the program. A program may use only names and times that belong to n, so that it cannot see data
// of another program.
type program func(t *rapid.T, n int) []step

// number counts the programs. Each program uses the hour that belongs to its number; see place.
var number atomic.Int64

// compare runs random programs on all engines in list. It fails the test if an engine and the first
// engine give different answers to an operation. The parameter contract is the name of the subtest.
func compare(t *testing.T, contract string, p program, list ...side) {
	t.Run(contract, func(t *testing.T) {
		all := sides(t, list)
		ctx, stop := context.WithTimeout(context.Background(), 30*time.Minute)
		defer stop()
		rapid.Check(t, func(rt *rapid.T) {
			steps := p(rt, int(number.Add(1)))
			var want []string
			for i, e := range all {
				k := &known{numbers: map[string]uint64{}, texts: map[string][]string{}}
				var got []string
				for _, s := range steps {
					text, err := s.do(ctx, e, k)
					got = append(got, s.name+" => "+answer(text, err))
				}
				if i == 0 {
					want = got
					continue
				}
				for j := range got {
					if got[j] != want[j] {
						rt.Fatalf("step %d of %d:\n%s: %s\n%s: %s\nbefore:\n%s", j+1, len(got), e.name, got[j], all[0].name, want[j], strings.Join(want[:j], "\n"))
					}
				}
			}
			sequences.Add(1)
			operations.Add(int64(len(steps) * len(all)))
		})
	})
}

// steps draws a sequence of most/2 to 2*most operations. Each operation is drawn by a random
// function of the list drawers.
func steps(t *rapid.T, most int, drawers ...func(t *rapid.T) step) (out []step) {
	n := rapid.IntRange(most/2, 2*most).Draw(t, "steps")
	for range n {
		out = append(out, drawers[rapid.IntRange(0, len(drawers)-1).Draw(t, "operation")](t))
	}
	return out
}

func draw(t *rapid.T, what string, most int) int { return rapid.IntRange(0, most).Draw(t, what) }

// began is the hour in which this run began. Each program uses one hour before began and one hour
// after it; see place.
var began = time.Now().Truncate(time.Hour)

// place returns the beginning of the hour of program n, in ms since 1970. This hour begins n hours
// after began. place(-n) is the time n hours before began.
func place(n int) int64 { return began.Add(time.Duration(n) * time.Hour).UnixMilli() }

// base returns the request id (base) of request i of program n. Its time is in the hour place(-n).
func base(n, i int) notify.Base {
	var b notify.Base
	ms := place(-n) + int64(i)
	for k := range 6 {
		b[k] = byte(ms >> (8 * (5 - k)))
	}
	b[14], b[15] = byte(n), byte(i)
	return b
}

func names[T any](of []T, name func(T) string) string {
	out := make([]string, len(of))
	for i, one := range of {
		out[i] = name(one)
	}
	return "[" + strings.Join(out, " ") + "]"
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}
