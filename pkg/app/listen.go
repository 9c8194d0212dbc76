package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// portRetryFor is how long Listen retries if another process uses the port. At a restart the old
// process may still be stopping.
const portRetryFor = 3 * time.Second

// Listen listens on a TCP address. If another process uses the port, Listen retries for 3 s. Then it
// returns notify.KindUnavailable with the error code "listen". The error names the purpose of the
// address and the port. If the process that uses the port is known, the error also names that process.
func Listen(ctx context.Context, purpose, addr string) (net.Listener, error) {
	return listen(ctx, purpose, addr, portRetryFor, func() {})
}

// listen does what Listen does, but retries for the duration retryFor. It calls the function tried
// after each attempt in which another process used the port.
func listen(ctx context.Context, purpose, addr string, retryFor time.Duration, tried func()) (net.Listener, error) {
	end := time.NewTimer(retryFor)
	defer end.Stop()
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, cannotListen(purpose, addr, "", err)
		}
		tried()
		select {
		case <-time.After(50 * time.Millisecond):
			continue
		case <-end.C:
		case <-ctx.Done():
		}
		return nil, cannotListen(purpose, addr, holderOfPort(addr), err)
	}
}

func cannotListen(purpose, addr, holder string, err error) error {
	msg := fmt.Sprintf("cannot listen on %s (%s)", addr, purpose)
	if _, port, serr := net.SplitHostPort(addr); serr == nil && errors.Is(err, syscall.EADDRINUSE) {
		msg = fmt.Sprintf("port %s (%s) is taken", port, purpose)
		if holder != "" {
			msg += " by " + holder
		}
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "listen", Msg: msg, Err: err}
}

// checkPortFree waits until it is possible to listen on a port, and then frees the port again. The
// embedded broker opens the port itself later.
func checkPortFree(ctx context.Context, what, addr string) error {
	if _, port, err := portOf(addr); err != nil || port == 0 {
		return err
	}
	l, err := Listen(ctx, what, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// holderOfPort returns the process that listens on a port of this machine, such as "pid 7 (notifyd)".
// It returns "" if the process is not known.
func holderOfPort(addr string) string {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return ""
	}
	pid, name := listenerOf(port)
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf("pid %d (%s)", pid, name)
}
