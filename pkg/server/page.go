package server

import "net/http"

// pagePath is where the operator page is. It is served here and not by the admin
// listener, for here are TLS and tokens.
const pagePath = "/ui/"

// maxPages is how many requests of the page are under way at a time: the form to
// sign in is open to whoever reaches the API, and takes none of callers' room.
const maxPages = 256

// servePage hands over to the page, which answers in HTML, its errors too.
func servePage(x *exchange) error {
	x.srv.page.ServeHTTP(&told{x.w, x}, x.r)
	return nil
}

// told tells the exchange what was answered.
type told struct {
	http.ResponseWriter
	x *exchange
}

func (t *told) WriteHeader(status int) {
	if t.x.status == 0 {
		t.x.status = status
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t *told) Write(b []byte) (int, error) {
	if t.x.status == 0 {
		t.x.status = http.StatusOK
	}
	n, err := t.ResponseWriter.Write(b)
	t.x.out += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (t *told) Unwrap() http.ResponseWriter { return t.ResponseWriter }
