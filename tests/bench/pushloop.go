package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// loop measures the reference of P5 for about d and returns answered pushes per second. On each
// connection, one goroutine writes a prepared request on every free stream, and another goroutine
// counts the answers. loop renders no notification, reports no result of a single push, and has
// neither timeouts nor retries.
func (s *pushSink) loop(ctx context.Context, d time.Duration) float64 {
	before, began := s.sent.Load(), time.Now()
	rig.Together(ctx, pushConns, func(ctx context.Context, _ int) { s.loopConn(ctx, d) })
	return float64(s.sent.Load()-before) / time.Since(began).Seconds()
}

func (s *pushSink) loopConn(ctx context.Context, d time.Duration) {
	nc := rig.Must((&tls.Dialer{Config: &tls.Config{RootCAs: s.roots, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true}}).DialContext(ctx, "tcp", s.addr))
	defer nc.Close()
	var hello frameBuffer
	hello = append(hello, http2.ClientPreface...)
	fr := http2.NewFramer(&hello, nil)
	_ = fr.WriteSettings()
	_ = fr.WriteSettingsAck()
	rig.Must(nc.Write(hello))
	block, tokenAt := preparedBlock()
	body := []byte(`{"aps":{"alert":{"title":"Your order","body":"It is on its way."}},"order":"12345","ntf":"ntf_01JABCDEFGHJKMNPQRSTVWXYZ0-123"}`)
	free := make(chan int, pushStreams)
	free <- pushStreams
	go func() { // the reader; it ends when the connection is closed
		defer close(free)
		br := bufio.NewReaderSize(nc, 32<<10)
		for {
			n := 0
			for n == 0 || br.Buffered() >= 9 {
				h, err := br.Peek(9)
				if err != nil {
					return // the writer or the sink has closed the connection; if it was the sink, the counter busy stays above 0
				}
				if http2.FrameType(h[3]) == http2.FrameHeaders {
					n++
				}
				if _, err := br.Discard(9 + int(uint32(h[0])<<16|uint32(binary.BigEndian.Uint16(h[1:])))); err != nil {
					return // the connection is closed, as above
				}
			}
			free <- n
		}
	}()
	began, id, busy, answered := time.Now(), uint32(1), 0, int64(0)
	var out []byte
	for n := range free {
		if answered += int64(min(n, busy)); busy > 0 {
			busy -= n
		}
		if time.Since(began) >= d || ctx.Err() != nil {
			if busy <= 0 {
				break
			}
			continue
		}
		out = out[:0]
		for range n {
			copy(block[tokenAt:], fmt.Appendf(nil, "%08x", id))
			out = append(out, 0, byte(len(block)>>8), byte(len(block)), byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
			out = append(out, block...)
			out = append(out, 0, byte(len(body)>>8), byte(len(body)), byte(http2.FrameData), byte(http2.FlagDataEndStream), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
			out = append(out, body...)
			id += 2
		}
		busy += n
		rig.Must(nc.Write(out))
	}
	_ = nc.Close()
	for range free { // wait until the reader has ended
	}
	s.sent.Add(answered)
	if busy > 0 {
		panic(fmt.Errorf("%d pushes were not answered", busy))
	}
}

// preparedBlock returns an HPACK header block that can be sent again and again: none of its fields
// is added to the dynamic table. tokenAt is the index of the first byte of the device token.
func preparedBlock() (block []byte, tokenAt int) {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	token := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "127.0.0.1"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	path := "/3/device/" + token
	b.Write([]byte{4, byte(len(path))})
	b.WriteString(path)
	tokenAt = b.Len() - len(token)
	for _, f := range [][2]string{
		{"apns-topic", "com.example.app"}, {"apns-push-type", "alert"}, {"apns-priority", "10"}, {"apns-expiration", "1893456000"},
		{"apns-id", "123e4567-e89b-42d3-a456-426614174000"}, {"authorization", "bearer " + token + token + token},
	} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	return b.Bytes(), tokenAt
}
