package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// pushSinkArg is the argument that makes this program the sink of P5.
const pushSinkArg = "push-sink"

// pushSinkMain listens, prints its address and certificate, and answers pushes until its input ends.
// Then it prints how many pushes it has answered.
func pushSinkMain() {
	cert := selfSigned()
	l := rig.Must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true}))
	say := json.NewEncoder(os.Stdout)
	rig.Ok(say.Encode(sinkHello{Addr: l.Addr().String(), CA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))}))
	var pushes atomic.Int64
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = rig.Try((&sinkConn{nc: nc, pushes: &pushes, wake: make(chan struct{}, 1), end: make(chan struct{})}).serve)
			}()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = l.Close()
	rig.Ok(say.Encode(sinkHello{Pushes: pushes.Load()}))
}

func selfSigned() tls.Certificate {
	key := rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sink"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der := rig.Must(x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// sinkConn is a connection of the sink. It answers each request 50 ms after the end of the request.
// It decodes only the first header block; in later requests it only looks for the end, so that the
// sink uses little processor time.
type sinkConn struct {
	nc     net.Conn
	pushes *atomic.Int64 // answered pushes of all connections
	wake   chan struct{} // gets a value when the fields due or control may have new entries
	end    chan struct{} // closed when serve ends

	mu      sync.Mutex
	due     []sinkDue // answers to write, in order of time
	control []byte    // encoded control frames to write
}

type sinkDue struct {
	at time.Time
	id uint32
}

func (c *sinkConn) serve() {
	defer c.nc.Close()
	br := bufio.NewReaderSize(c.nc, 64<<10)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(br, preface); err != nil || string(preface) != http2.ClientPreface {
		panic(errors.Join(errors.New("the client sent no HTTP/2 preface"), err))
	}
	var hello frameBuffer
	fr := http2.NewFramer(&hello, nil)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: pushStreams}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = fr.WriteWindowUpdate(0, 1<<30)
	rig.Must(c.nc.Write(hello))
	go c.answer()
	defer close(c.end)
	used, first := 0, true
	for {
		var at time.Time // answer time for all frames that arrived together; the clock is read once
		for at.IsZero() || br.Buffered() >= 9 {
			h := rig.Must(br.Peek(9))
			if at.IsZero() {
				at = time.Now().Add(pushLatency)
			}
			n := int(uint32(h[0])<<16 | uint32(binary.BigEndian.Uint16(h[1:])))
			typ, flags, id := http2.FrameType(h[3]), http2.Flags(h[4]), binary.BigEndian.Uint32(h[5:])
			body := rig.Must(br.Peek(9 + n))
			c.mu.Lock()
			var say frameBuffer
			switch typ {
			case http2.FrameHeaders:
				if first {
					first = false
					checkPush(body[9:])
				}
			case http2.FrameSettings:
				if flags&http2.FlagSettingsAck == 0 {
					_ = http2.NewFramer(&say, nil).WriteSettingsAck()
				}
			case http2.FramePing:
				if flags&http2.FlagPingAck == 0 {
					_ = http2.NewFramer(&say, nil).WritePing(true, [8]byte(body[9:]))
				}
			case http2.FrameData:
				if used += n; used > 1<<28 {
					_ = http2.NewFramer(&say, nil).WriteWindowUpdate(0, uint32(used))
					used = 0
				}
			}
			c.control = append(c.control, say...)
			if flags&http2.FlagDataEndStream != 0 && (typ == http2.FrameData || typ == http2.FrameHeaders) {
				c.due = append(c.due, sinkDue{at, id})
			}
			c.mu.Unlock()
			rig.Must(br.Discard(9 + n))
		}
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// checkPush panics if a header block does not have the fields of a push. The panic ends the
// connection.
func checkPush(block []byte) {
	fields := rig.Must(hpack.NewDecoder(4096, nil).DecodeFull(block))
	for _, name := range []string{":method", ":path", "authorization", "apns-topic", "apns-id"} {
		if !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool { return f.Name == name }) {
			fmt.Fprintf(os.Stderr, "sink: the push has no %s\n", name)
			panic(errors.New("the first request of the connection is not a push"))
		}
	}
}

type frameBuffer []byte

func (b *frameBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// answer writes the answers that are due, and the control frames. Between two writes it sleeps at
// least a millisecond, so that each write has many answers.
func (c *sinkConn) answer() {
	// The header block has :status 200 and an apns-id, as APNs answers.
	block := append([]byte{0x88, 0x10, 7}, "apns-id"...)
	block = append(append(block, 36), "123e4567-e89b-42d3-a456-426614174000"...)
	var out []byte
	for {
		c.mu.Lock()
		out = append(out[:0], c.control...)
		c.control = c.control[:0]
		now, n, wait := time.Now(), 0, time.Duration(-1)
		for ; n < len(c.due); n++ {
			if d := c.due[n].at.Sub(now); d > 0 {
				wait = max(d, time.Millisecond)
				break
			}
			id := c.due[n].id
			out = append(out, 0, 0, byte(len(block)), byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
			out = append(out, block...)
		}
		c.due = c.due[:copy(c.due, c.due[n:])]
		c.mu.Unlock()
		if len(out) > 0 {
			c.pushes.Add(int64(n))
			if _, err := c.nc.Write(out); err != nil {
				return
			}
		}
		if wait >= 0 {
			time.Sleep(wait)
			continue
		}
		select {
		case <-c.wake:
		case <-c.end:
			return
		}
	}
}
