package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

type devAddrs struct{ api, admin, kafka, control, callback string }

// listenDevPorts returns the five addresses of a dev server: the given port and the four ports after
// it. If port is 0, each address gets any free port. listenDevPorts checks that the five ports are
// free. It returns the open listener of the API. The simulators need the API's address before the
// server starts, and no other process may take the port until then. The caller must close the listener.
func listenDevPorts(ctx context.Context, port int) (a devAddrs, api net.Listener, err error) {
	addr := func(n int) string {
		if port == 0 {
			n = 0
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
	}
	a = devAddrs{addr(port), addr(port + 1), addr(port + 2), addr(port + 3), addr(port + 4)}
	if api, err = app.Listen(ctx, "the API", a.api); err != nil {
		return a, nil, portTaken(port, err)
	}
	a.api = api.Addr().String()
	if port == 0 {
		return a, api, nil // each of the other listeners gets a free port when it is opened
	}
	for _, other := range []struct{ what, addr string }{{"metrics", a.admin}, {"Kafka", a.kafka}, {"the inbox", a.control}, {"callbacks", a.callback}} {
		l, err := app.Listen(ctx, other.what, other.addr)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return a, nil, errors.Join(portTaken(port, err), api.Close())
		}
	}
	return a, api, nil
}

// portTaken adds next steps to err if err means that it is not possible to listen on an address.
func portTaken(port int, err error) error {
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "listen" {
		return err
	}
	other := port + 100
	if other > 65535-4 {
		other = 7420
	}
	return &term.Error{Exit: term.ExitUnavailable, Err: err, Next: []string{
		fmt.Sprintf("notifyd dev --port %d   (%d to %d)", other, other, other+4),
		"notifyd dev --port 0      (free ports; the banner shows them)",
	}}
}
