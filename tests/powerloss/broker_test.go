//go:build linux

package powerloss

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/tests/powerloss/lossfs"
)

// TestLogKeepsWhatItAcknowledged checks that the embedded log, after a power cut, still has
// every acknowledged record at its offset and every committed offset of a group.
func TestLogKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	r := runBroker(t, lossfs.WithFile, embedded.Fsync, trials(t, 10))
	if r.lost != 0 || r.regressed != 0 {
		t.Errorf("%v", r)
	}
	if r.acked == 0 || r.commits == 0 {
		t.Errorf("nothing was proved: %v", r)
	}
	total.add(r.cuts, r.acked, r.lost, 0, 0)
	t.Log(r)
}

// TestLogWithoutFsyncIsCaught runs the same broker without fsync and expects that records are lost.
// So it proves that TestLogKeepsWhatItAcknowledged can fail.
func TestLogWithoutFsyncIsCaught(t *testing.T) {
	t.Parallel()
	r := runBroker(t, lossfs.WithFile, embedded.PageCache, 4)
	if r.lost == 0 {
		t.Errorf("no loss was noticed: %v", r)
	}
	t.Log(r)
}

// story has the acknowledgements that all runs of the child process have printed.
type story struct {
	acked     map[int32]map[int64]string // names of values, by partition and offset
	committed map[int32]int64
	trimmed   map[int32]int64
	commits   int
}

type verdict struct {
	cuts, acked, commits int
	lost                 int // acknowledged records that are gone or have another value
	regressed            int // committed offsets that are smaller after the cut
}

func (v verdict) String() string {
	return fmt.Sprintf("broker cuts=%d acknowledged=%d commits=%d lost=%d regressed=%d", v.cuts, v.acked, v.commits, v.lost, v.regressed)
}

func runBroker(t *testing.T, names lossfs.Names, durability embedded.Durability, cuts int) (v verdict) {
	disk, dir := mount(t, names)
	dir = filepath.Join(dir, "log")
	rng := seed(t)
	h := newStory()
	for trial := range cuts {
		h.live(t, dir, durability, rng)
		loss := disk.Cut(torn(trial, rng))
		lost, regressed := h.check(t, disk.Copy(), durability)
		t.Logf("cut %d dropped %d pages and %d names: lost %d records, %d commits", trial+1, loss.Pages, loss.Names, lost, regressed)
		v.cuts++
		v.lost, v.regressed = v.lost+lost, v.regressed+regressed
		if lost+regressed > 0 {
			break // later cuts would count the same losses again
		}
	}
	for _, m := range h.acked {
		v.acked += len(m)
	}
	v.commits = h.commits
	return v
}

func newStory() *story {
	h := &story{acked: map[int32]map[int64]string{}, committed: map[int32]int64{}, trimmed: map[int32]int64{}}
	for p := range int32(partitions) {
		h.acked[p] = map[int64]string{}
	}
	return h
}

// live starts the child process and kills it after a random number of printed lines.
func (h *story) live(t *testing.T, dir string, durability embedded.Durability, rng *rand.Rand) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var complaint strings.Builder
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_DURABILITY="+string(durability))
	c.Stderr = &complaint
	pipe, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	end := rng.IntN(1500)
	n := 0
	for n < end && lines.Scan() {
		h.hear(t, lines.Text())
		n++
	}
	if n < end {
		t.Fatalf("the broker ended by itself: %v\n%s", c.Wait(), &complaint)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // also record the lines that were printed before the kill
		h.hear(t, lines.Text())
	}
	_, _ = io.Copy(io.Discard, pipe)
	_ = c.Wait() // killed
}

func (h *story) hear(t *testing.T, line string) {
	t.Helper()
	var p int32
	var off int64
	var value string
	switch what, rest, _ := strings.Cut(line, " "); what {
	case "ack":
		if _, err := fmt.Sscan(rest, &p, &off, &value); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		h.acked[p][off] = value
	case "commit", "trim":
		if _, err := fmt.Sscan(rest, &p, &off); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if what == "commit" {
			h.committed[p] = max(h.committed[p], off)
			h.commits++
		} else {
			h.trimmed[p] = max(h.trimmed[p], off)
		}
	default:
		t.Fatalf("the broker says %q", line)
	}
}

// check opens the log on disk, which is a copy of the disk after the cut. It counts the
// acknowledged records that are lost and the committed offsets that are smaller. It works on a
// copy, because it stops the broker gracefully. The next run of the child must begin with the log
// as the cut left it.
func (h *story) check(t *testing.T, disk *lossfs.Disk, durability embedded.Durability) (lost, regressed int) {
	t.Helper()
	dir, unmount := mountDisk(t, disk)
	defer unmount()
	dir = filepath.Join(dir, "log")
	id, _ := os.ReadFile(dir + ".id")
	cfg := brokerConfig(dir, durability)
	cfg.StoreID = string(id)
	b, err := embedded.Open(cfg)
	if err != nil {
		for p := range h.acked {
			lost += len(h.acked[p])
		}
		if lost == 0 { // nothing was acknowledged before the cut, so the log must open
			t.Fatal(err)
		}
		t.Log(err)
		return lost, 0
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	for p := range int32(partitions) {
		found := readAll(t, b, p)
		for off, value := range h.acked[p] {
			if off >= h.trimmed[p] && found[off] != value {
				if lost++; lost < 4 {
					t.Logf("partition %d, offset %d: %q, acknowledged %q", p, off, found[off], value)
				}
			}
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.Dialer(b.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	offsets, err := kadm.NewClient(cl).FetchOffsets(t.Context(), group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		t.Fatal(err)
	}
	for p, want := range h.committed {
		got, _ := offsets.Lookup(topic, p)
		if got.At < want {
			t.Logf("partition %d: the group is at %d, had committed %d", p, got.At, want)
			regressed++
		}
	}
	return lost, regressed
}

// readAll reads all records of a partition. It returns the name of each value by offset.
func readAll(t *testing.T, b *embedded.Broker, p int32) map[int64]string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.Dialer(b.Dial),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {p: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	starts, err := kadm.NewClient(cl).ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, p)
	start, _ := starts.Lookup(topic, p)
	found := map[int64]string{}
	for next := start.Offset; next < end.Offset; {
		fetches := cl.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			found[r.Offset] = name(r.Value)
			next = r.Offset + 1
		})
	}
	return found
}
