package kfake

import (
	"context"
	"net"
	"sync"
)

// door is where clients come in: those of other processes by TCP, those of this one,
// which are nearly all, by a pipe in memory. Through the loopback what a client of this
// process sent was copied twice more, by the kernel: of a receiver of a fan-out 6 ns
// (P6).
type door struct {
	net.Listener
	inside chan net.Conn
	closed chan struct{}
	once   sync.Once
	dialer net.Dialer
}

func (d *door) listen(network, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	d.Listener, d.inside, d.closed = l, make(chan net.Conn), make(chan struct{})
	go d.let()
	return d, nil
}

// let takes in those who come by the network, until the listener is closed.
func (d *door) let() {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			_ = d.Close()
			return
		}
		select {
		case d.inside <- conn:
		case <-d.closed:
			_ = conn.Close() // nobody will answer it
			return
		}
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.inside:
		return conn, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called more than once.
func (d *door) Close() (err error) {
	d.once.Do(func() {
		close(d.closed)
		err = d.Listener.Close()
	})
	return err
}

// dial connects to the broker behind the door, and to any other over the network.
func (d *door) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address != d.Addr().String() {
		return d.dialer.DialContext(ctx, network, address)
	}
	theirs, ours := net.Pipe()
	select {
	case d.inside <- piped{theirs, d.Addr()}:
		return piped{ours, d.Addr()}, nil
	case <-d.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Addr: d.Addr(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// piped is an end of a pipe; it says where the broker listens, not "pipe", which is no
// address to those who show where their peer is.
type piped struct {
	net.Conn
	at net.Addr
}

func (p piped) LocalAddr() net.Addr  { return p.at }
func (p piped) RemoteAddr() net.Addr { return p.at }
