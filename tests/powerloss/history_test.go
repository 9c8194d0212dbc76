//go:build linux

package powerloss

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/powerloss/lossfs"
)

// TestHistoryKeepsWhatItSealed checks that, after a power cut, the history still has its sealed
// offset and every receiver below that offset. This matters because the log is trimmed up to the
// sealed offset. The tests of pkg/history use a file system in memory and cut the power between
// any two calls. This test uses a real process and real calls of the file system.
func TestHistoryKeepsWhatItSealed(t *testing.T) {
	t.Parallel()
	// In this model only an fsync of the folder makes names durable, so history must sync folders.
	disk, mnt := mount(t, lossfs.WithFolder)
	rng := seed(t)
	dir := filepath.Join(mnt, "history")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	syncFolder(t, mnt)
	cuts, lost := trials(t, 10), 0
	var sealed int64
	for trial := range cuts {
		sealed = max(sealed, recordUntilKilled(t, dir, rng))
		loss := disk.Cut(torn(trial, rng))
		missing := checkHistory(t, disk.Copy(), sealed)
		t.Logf("history cut %d dropped %d pages and %d names: sealed %d, lost %d", trial+1, loss.Pages, loss.Names, sealed, missing)
		lost += missing
	}
	if lost != 0 {
		t.Errorf("lost %d", lost)
	}
	if sealed == 0 {
		t.Error("nothing was sealed")
	}
	total.add(cuts, int(sealed), lost, 0, 0)
}

func syncFolder(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

var historyPart = history.Part{Topic: "notifications-push"}

func historyConfig(dir string) history.Config {
	return history.Config{Dir: dir, SegmentReceivers: 40, BufferBytes: 512, MergeCount: 3}
}

// baseOf returns the request id (base) of the record at an offset.
func baseOf(offset int64) (b notify.Base) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())) // far in the future, so that retention never removes the record
	copy(b[:6], ms[2:])
	binary.BigEndian.PutUint64(b[8:], uint64(offset))
	return b
}

// beHistory opens the history in dir and appends records, beginning at the offset at which the
// history must resume. It continues until this process is killed. It prints the sealed offset each
// time that the offset increases.
func beHistory(dir string) error {
	s, err := history.Open(historyConfig(dir))
	if err != nil {
		return err
	}
	errs := make(chan error, 1)
	go func() { errs <- s.Run(context.Background()) }()
	said := int64(-1)
	for off := s.Resume()[historyPart]; ; off++ {
		var w notify.ReceiverWriter
		for i := range uint32(5) {
			w.Append(notify.Receiver{Index: i, User: fmt.Appendf(nil, "user-%d-%d", off, i)})
		}
		base := baseOf(off)
		e := notify.Envelope{
			Chunk: notify.Chunk{Base: base}, FanOut: true, Channel: notify.Push, Category: notify.Marketing,
			Accepted: base.Time().UnixMilli(), Caller: "c", Count: 5, Receivers: w.Bytes(),
		}
		err := s.Append(context.Background(), history.Record{
			Topic: historyPart.Topic, Partition: historyPart.Partition, Offset: off, Value: notify.AppendEnvelope(nil, &e), Time: e.Accepted,
		})
		if err != nil {
			return err
		}
		if at := s.Sealed()[historyPart]; at > said {
			said = at
			fmt.Println("sealed", at)
		}
		select {
		case err := <-errs:
			return err
		default:
		}
	}
}

func recordUntilKilled(t *testing.T, dir string, rng *rand.Rand) (sealed int64) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var complaint strings.Builder
	c := exec.Command(exe)
	c.Env = append(os.Environ(), historyEnv+"="+dir)
	c.Stderr = &complaint
	pipe, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end, n := 1+rng.IntN(60), 0
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "sealed %d", &sealed); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if n++; n == end {
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(); n < end {
		t.Fatalf("history ended by itself: %v\n%s", err, &complaint)
	}
	return sealed
}

// checkHistory opens the history on disk and counts the receivers below the offset sealed that are
// missing.
func checkHistory(t *testing.T, disk *lossfs.Disk, sealed int64) (lost int) {
	t.Helper()
	mnt, unmount := mountDisk(t, disk)
	defer unmount()
	s, err := history.Open(historyConfig(filepath.Join(mnt, "history")))
	if err != nil {
		t.Error(err)
		return int(sealed)
	}
	defer s.Close()
	if at := s.Sealed()[historyPart]; at < sealed {
		t.Errorf("sealed up to %d, had said %d", at, sealed)
	}
	for off := range sealed {
		for i := range uint32(5) {
			found, err := s.Find(t.Context(), notify.ID{Base: baseOf(off), FanOut: true, Index: i})
			if err != nil || string(found.User) != fmt.Sprintf("user-%d-%d", off, i) {
				if lost++; lost < 4 {
					t.Logf("offset %d, receiver %d: %q, %v", off, i, found.User, err)
				}
			}
		}
	}
	return lost
}
