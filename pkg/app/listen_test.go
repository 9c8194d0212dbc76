package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func occupied(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// If the process that has a port is about to end, the node waits for the port.
func TestListenWaitsForAPort(t *testing.T) {
	t.Parallel()
	before := occupied(t)
	addr, tries := before.Addr().String(), 0
	l, err := listen(t.Context(), "api.listen", addr, time.Minute, func() {
		if tries++; tries == 2 {
			if err := before.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().String() != addr || tries < 2 {
		t.Errorf("%s after %d tries, want %s", l.Addr(), tries, addr)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// If a port stays in use, the error names the port, its purpose and the process that has it.
func TestListenNamesTheHolder(t *testing.T) {
	t.Parallel()
	addr := occupied(t).Addr().String()
	_, err := listen(t.Context(), "api.listen", addr, 0, func() {})
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code != "listen" || notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("%v", err)
	}
	_, port, _ := net.SplitHostPort(addr)
	want := fmt.Sprintf("port %s (api.listen) is taken", port)
	if runtime.GOOS == "linux" {
		want += fmt.Sprintf(" by pid %d (", os.Getpid())
	}
	if !strings.HasPrefix(e.Msg, want) {
		t.Errorf("%q, want %q", e.Msg, want)
	}
	if _, err := listen(t.Context(), "api.listen", "192.0.2.1:0", 0, func() {}); err == nil || !strings.Contains(err.Error(), "cannot listen on 192.0.2.1:0 (api.listen)") {
		t.Errorf("an address of another machine: %v", err)
	}
}
