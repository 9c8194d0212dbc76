package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

func escape(s string) string { return url.QueryEscape(s) }

// raw opens a connection to the address, sends the text unchanged, and returns the first answer.
// The status of the answer is 0 if the server closes the connection without an answer, or does not
// answer within 3 s.
func raw(address, text string) (a answer, err error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return a, err
	}
	// Ignore an error: a server may answer and close before it has read the whole text.
	_, _ = conn.Write([]byte(text))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return a, nil
	}
	defer resp.Body.Close()
	b := make([]byte, 4096)
	n, _ := resp.Body.Read(b)
	return answer{resp.StatusCode, resp.Header, string(b[:n])}, nil
}

// tryRawRequest adds a try with one raw request. Three results count as a refusal: a status of 400
// or more, no answer, or a redirect to the sign-in form.
func (r *world) tryRawRequest(name, does, text string) {
	r.try(name, does, "a status of 400 or more, no answer, or a redirect to the sign-in form", func(context.Context) string {
		a := rig.Must(raw(apiAddr, text))
		signIn := a.status == http.StatusSeeOther && strings.HasPrefix(a.header.Get("Location"), "/ui/sign-in")
		return a.describeIf(a.status != 0 && a.status < 400 && !signIn)
	})
}

// get returns the text of a raw GET request without a body.
func get(path string, header ...string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n", path, apiAddr, lines(header))
}

func lines(header []string) string {
	if len(header) == 0 {
		return ""
	}
	return strings.Join(header, "\r\n") + "\r\n"
}
