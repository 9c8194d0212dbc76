package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/creack/pty"
)

// BenchmarkScreen says what the live screen costs a run: the same run on a terminal
// of 160x48, with panels and with a line a second, in turn, and the processor time of
// each as the kernel counted it.
func BenchmarkScreen(b *testing.B) {
	const length = 20 * time.Second
	file := filepath.Join(b.TempDir(), "run.yaml")
	text := fmt.Sprintf("name: screen\nduration: %v\nsteps: [{target: \"null\", rate: 1M, workers: 2}]\n", length)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	var cores [2]float64 // of a line a second, of panels
	rounds := 0
	for b.Loop() {
		rounds++
		for i, more := range [][]string{{"--no-ui"}, nil} {
			cores[i] += onScreen(b, append([]string{"load", "run", file, "--no-calibration", "--no-keep"}, more...)).Seconds() / length.Seconds()
		}
	}
	n := float64(rounds)
	lines, panels := cores[0]/n, cores[1]/n
	b.ReportMetric(lines, "cores-lines")
	b.ReportMetric(panels, "cores-panels")
	b.ReportMetric(100*(panels-lines), "%core")
	b.Logf("screen columns=160 rows=48 rate=1000000 seconds=%.0f rounds=%d cores_lines=%.3f cores_panels=%.3f percent_of_a_core=%.2f", length.Seconds(), rounds, lines, panels, 100*(panels-lines))
}

// onScreen runs notifyctl on a terminal and returns the processor time it took.
func onScreen(b *testing.B, args []string) time.Duration {
	b.Helper()
	c := exec.CommandContext(b.Context(), "notifyctl", args...) // TestMain puts it on the PATH
	c.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "HOME="+b.TempDir())
	far, err := pty.StartWithSize(c, &pty.Winsize{Rows: 48, Cols: 160})
	if err != nil {
		b.Skipf("no terminals here: %v", err)
	}
	defer far.Close()
	_, _ = io.Copy(io.Discard, far) // until its end is an error of the terminal
	if err := c.Wait(); err != nil {
		b.Fatal(err)
	}
	return c.ProcessState.UserTime() + c.ProcessState.SystemTime()
}
