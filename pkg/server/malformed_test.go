package server

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Whatever a client sends as a request, or says of going on or upgrading, it gets an
// answer: from net/http where there is no request for a handler.
func TestWhatNoHandlerSeesIsAnswered(t *testing.T) {
	t.Parallel()
	f := func(text string, status int, code string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln, _, stop := pipeServer(t, newWorld(), Config{})
			c := ln.dial()
			c.SetDeadline(time.Now().Add(time.Minute))
			go io.WriteString(c, strings.ReplaceAll(text, "TOKEN", token(t, "shop", api.ScopeSend)))
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, &http.Request{Method: "GET"})
			if err != nil {
				t.Fatalf("%.60q: %v", text, err)
			}
			body, err := io.ReadAll(resp.Body)
			var p api.Problem
			if err != nil || resp.StatusCode != status || (code != "" && (json.Unmarshal(body, &p) != nil || p.Code != code || p.Status != status ||
				p.Detail == "" || p.RequestID == "" || p.RequestID != resp.Header.Get(api.HeaderRequestID) || resp.Header.Get("Content-Type") != api.TypeProblem)) {
				t.Errorf("%.60q: %d %v %s, %v", text, resp.StatusCode, resp.Header, body, err)
			}
			if code == api.CodeMethodNotAllowed && resp.Header.Get("Allow") == "" {
				t.Errorf("%.60q: no Allow", text)
			}
			c.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	const host, auth = "Host: x\r\n", "Authorization: Bearer TOKEN\r\n"
	f("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 405, api.CodeMethodNotAllowed)
	f("CONNECT /v1/notifications HTTP/1.1\r\n"+host+"\r\n", 405, api.CodeMethodNotAllowed)
	f("OPTIONS * HTTP/1.1\r\n"+host+"\r\n", 405, api.CodeMethodNotAllowed)
	f("GET * HTTP/1.1\r\n"+host+"\r\n", 405, api.CodeMethodNotAllowed)
	f("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405, api.CodeMethodNotAllowed)
	f("BREW /v1/notifications HTTP/1.1\r\n"+host+"\r\n", 405, api.CodeMethodNotAllowed)
	f("GET\r\n\r\n", 400, "")
	f("GET /healthz\r\n\r\n", 400, "")
	f("G ET /healthz HTTP/1.1\r\n"+host+"\r\n", 400, "")
	f("GET healthz HTTP/1.1\r\n"+host+"\r\n", 400, "")
	f("GET /%zz HTTP/1.1\r\n"+host+"\r\n", 400, "")
	f("GET /healthz HTTP/1.1\r\n\r\n", 400, "")                   // no Host
	f("GET /healthz HTTP/1.1\r\n"+host+host+"\r\n", 400, "")      // two
	f("GET /healthz HTTP/1.1\r\n"+host+"a b: c\r\n\r\n", 400, "") // no header
	f("GET /healthz HTTP/1.1\r\n"+host+"A: \x00\r\n\r\n", 400, "")
	f("POST /v1/notifications HTTP/1.1\r\n"+host+"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400, "")
	f("POST /v1/notifications HTTP/1.1\r\n"+host+"Transfer-Encoding: br\r\n\r\n", 501, "")
	f("GET /healthz HTTP/3.0\r\n"+host+"\r\n", 505, "")
	f("GET /healthz HTTP/1.1\r\n"+host+"X-A: "+strings.Repeat("a", 1<<20), 431, "")
	f("POST /v1/notifications HTTP/1.1\r\n"+host+auth+"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417, "")
	f("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "") // TLS
	for _, protocol := range []string{"websocket", "h2c", "TLS/1.0"} {
		f("GET /healthz HTTP/1.1\r\n"+host+"Connection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n", 200, "")
		f("POST /v1/notifications HTTP/1.1\r\n"+host+auth+"Connection: Upgrade\r\nUpgrade: "+protocol+"\r\nContent-Length: 2\r\n\r\n{}", 201, "")
	}
	f("POST /v1/notifications HTTP/1.1\r\n"+host+auth+"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", 201, "")
}
