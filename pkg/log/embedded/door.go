package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// door is the listener that the broker takes its connections from. There are three
// ways in:
//
//   - Dial, within the process;
//   - a unix socket of mode 0600, for tools of the same user;
//   - a loopback port, which any user of the machine can reach: each of its
//     connections goes through a reader (see there).
type door struct {
	addr   net.Addr // what the broker tells its clients
	ways   []net.Listener
	conns  chan net.Conn
	slots  chan struct{} // one for each connection of the port
	closed chan struct{}
	close  sync.Once
	loops  sync.WaitGroup
}

// unnamed is the address of a broker without a port. Clients need one; Dial does not
// look at it.
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
		default: // as many as there may be
			_ = c.Close()
			return nil
		}
	})
	return nil
}

// listenSocket opens the socket. What a process that was killed left under the name
// is removed: the folder is ours.
func (d *door) listenSocket(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", name)
	if err != nil {
		return err
	}
	if err := os.Chmod(name, 0o600); err != nil { // the folder is 0700: no other user came before
		return errors.Join(err, l.Close())
	}
	d.serve(l, func(c net.Conn) net.Conn { return c })
	return nil
}

// serve accepts connections of l until the door is closed. use returns nil for a
// connection that it has closed.
func (d *door) serve(l net.Listener, use func(net.Conn) net.Conn) {
	d.ways = append(d.ways, l)
	d.loops.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				select {
				case <-d.closed:
					return
				case <-time.After(50 * time.Millisecond): // such as EMFILE, which passes
					continue
				}
			}
			if c = use(c); c == nil {
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

// dial connects within the process. The connection is one of TCP: its buffers take
// what the broker, which reads one request ahead, has not read yet. Through a pipe
// or a unix socket the client's writes time out while the disk is slow.
func (d *door) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs, err := pair(ctx)
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

// DialSocket returns a dialer for clients of a broker's Config.Socket; it does not look
// at the address.
func DialSocket(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", name)
	}
}

// pair returns the two ends of a connection of this process with itself. Whoever else
// connects to its port, which is open for a moment, is hung up on.
func pair(ctx context.Context) (ours, theirs net.Conn, err error) {
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

// Accept is for the broker.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *door) Addr() net.Addr { return d.addr }

// Close ends every way in. Connections that were accepted are the broker's.
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
