package web

import (
	"bytes"
	"io"
	"net/http"
)

// inProcess carries requests to a handler of this process.
type inProcess struct{ to http.Handler }

// RoundTrip implements http.RoundTripper. A panic that ends a connection would
// end this one's page too: handlers turn theirs into answers.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context()) // handlers may change what they are given
	in.RequestURI = in.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &answer{header: http.Header{}}
	t.to.ServeHTTP(w, in)
	w.WriteHeader(http.StatusOK) // unless it was written
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
