package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// door is the listener from which the broker accepts connections. A client can connect in three
// ways:
//
//   - by Dial, within the process;
//   - through a unix socket of mode 0600, for tools of the same user;
//   - through a loopback port, which any user of the machine can reach. These connections are of type
//     readerConn, which refuses writes.
type door struct {
	addr   net.Addr // the address that the broker advertises to clients
	ways   []net.Listener
	conns  chan net.Conn  // connections that the broker has not accepted yet
	slots  chan struct{}  // holds a token for each connection through the port
	closed chan struct{}  // closed by Close
	close  sync.Once      // makes every call of Close except the first do nothing
	loops  sync.WaitGroup // goroutines of serve
}

// unnamed is the address of a broker without a port. Clients with Dial ignore the address, but
// their configuration must have one.
var unnamed = net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9092}

func newDoor() *door {
	return &door{addr: &unnamed, conns: make(chan net.Conn), slots: make(chan struct{}, maxReaders), closed: make(chan struct{})}
}

// listenPort opens the port for readers.
func (d *door) listenPort(address string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	d.addr = l.Addr()
	d.serve(l, func(c net.Conn) net.Conn {
		select {
		case d.slots <- struct{}{}:
			return newReaderConn(c, func() { <-d.slots })
		default: // maxReaders connections are already open
			_ = c.Close()
			return nil
		}
	})
	return nil
}

// listenSocket opens the unix socket. If a killed process has left a socket file, listenSocket removes
// it. This is safe, because only this user has access to the folder.
func (d *door) listenSocket(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", name)
	if err != nil {
		return err
	}
	if err := os.Chmod(name, 0o600); err != nil { // before this, the folder's mode 0700 keeps other users out
		return errors.Join(err, l.Close())
	}
	d.serve(l, func(c net.Conn) net.Conn { return c })
	return nil
}

// serve accepts connections from a listener in a goroutine until the door is closed. It passes each
// connection to the function wrap. The broker gets the connection that wrap returns. If wrap
// returns nil, it has closed the connection, and the broker gets nothing.
func (d *door) serve(l net.Listener, wrap func(net.Conn) net.Conn) {
	d.ways = append(d.ways, l)
	d.loops.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				select {
				case <-d.closed:
					return
				case <-time.After(50 * time.Millisecond): // a temporary error such as EMFILE
					continue
				}
			}
			if c = wrap(c); c == nil {
				continue
			}
			select {
			case d.conns <- c:
			case <-d.closed:
				_ = c.Close()
				return
			}
		}
	})
}

// dial connects within the process. While the broker works on a request, it reads only one more
// request. So dial uses TCP, whose buffers can hold further requests. With a pipe or a unix socket
// the client's writes would time out while the disk is slow.
func (d *door) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs, err := connPair(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case d.conns <- theirs:
		return ours, nil
	case <-d.closed:
		err = &net.OpError{Op: "dial", Net: "tcp", Addr: d.addr, Err: net.ErrClosed}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, ours.Close(), theirs.Close())
}

// DialSocket returns a dialer for clients that use the unix socket Config.Socket of a broker. The
// dialer ignores the address.
func DialSocket(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", name)
	}
}

// connPair returns the two ends of a TCP connection within this process. To make the connection, it
// opens a port for a moment. If another process connects to this port, connPair closes that connection.
func connPair(ctx context.Context) (ours, theirs net.Conn, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if ours, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	for {
		if theirs, err = l.Accept(); err != nil {
			return nil, nil, errors.Join(err, ours.Close())
		}
		if theirs.RemoteAddr().String() == ours.LocalAddr().String() {
			return ours, theirs, nil
		}
		_ = theirs.Close()
	}
}

// Accept returns the next connection. The broker calls it.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *door) Addr() net.Addr { return d.addr }

// Close closes all listeners. Connections that the broker has accepted belong to the broker and stay
// open.
func (d *door) Close() error {
	var err error
	d.close.Do(func() {
		close(d.closed)
		for _, l := range d.ways {
			err = errors.Join(err, l.Close())
		}
	})
	return err
}
