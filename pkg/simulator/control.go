package simulator

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// controlHandler serves the control API for people and test harnesses. The API is plain HTTP
// without authentication, so it must listen only on loopback. Errors are
// {"code","field","message"}.
//
//	GET    /inbox[.json]?channel=&q=           the last messages
//	GET    /urls.json /credentials.json /ca.pem
//	GET    /control/rules                      newest first, with counts
//	POST   /control/rules                      a Rule; 201 with its number
//	DELETE /control/rules/{number}
//	GET    /control/latency                    by provider
//	PUT    /control/latency/{provider}         a Latency; "all" for every provider
//	GET    /control/apns                       the Wire in force, and counts
//	PUT    /control/apns                       a Wire
//	GET    /control/receipts                   the settings and counts
//	PUT    /control/receipts                   Receipts
//	PUT    /control/optouts/{phone}            refuse messages with 21610; DELETE ends this
//	POST   /control/reset                      calls Reset
//	GET    /ledger/totals?settle=              settle=true: first check the order of the waiting
//	                                           deliveries (order.pending)
//	GET    /ledger?id=                         404 for an unknown id
//	GET    /ledger/duplicates?limit=           reads pairs until all duplicates are found
//	GET    /ledger/bases                       reads all pairs; takes minutes for a billion pairs
//	GET    /ledger/base?base=&expected=&bits=  missing receivers of a fan-out; bits=true: one bit per
//	                                           index
//	GET    /ledger/order                       an OrderReport about all deliveries so far; it gets
//	                                           examples only while all users fit into memory
//	GET    /ledger/dump?since_ms=              NDJSON, one line per (id, address); only ids that were
//	                                           made at this time or later
//	GET    /ledger/arrivals?since=             first deliveries in order, from a cursor on, for
//	                                           ParseArrivals;
//	                                           the header Ledger-Cursor has the next cursor.
//	                                           since=end: no rows, only the cursor
//	POST   /ledger/check                       ids, one per line; returns the ids that were not delivered
//	DELETE /ledger                             forget everything
//	GET    /callbacks/totals                   counts and lateness of the calls of triggers
//	GET    /callbacks?id=                      calls of one trigger; header and body only for the
//	                                           latest 1,000 calls of all triggers; 404 if the
//	                                           trigger has no calls
//	GET    /callbacks/dump?since_ms=           NDJSON, one line per call at this time or later
//	PUT    /callbacks/secret                   {"secret"}: the secret that must sign the calls
//	DELETE /callbacks                          forget everything
//	GET    /healthz
func controlHandler(s *Simulator) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/inbox", http.StatusFound))
	mux.HandleFunc("GET /inbox", func(w http.ResponseWriter, r *http.Request) { inboxPage(s, w, r) })
	mux.HandleFunc("GET /inbox.json", func(w http.ResponseWriter, r *http.Request) { inboxJSON(s, w, r) })
	mux.HandleFunc("GET /ca.pem", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(s.ca.pem)
	})
	serveValue(mux, "/healthz", func() any { return map[string]string{"status": "ok"} })
	serveValue(mux, "/urls.json", func() any { return s.URLs() })
	serveValue(mux, "/credentials.json", func() any { return s.Credentials() })
	controlRoutes(s, mux)
	s.ledger.routes(mux)
	s.calls.controlRoutes(mux)
	// Refuse requests from web pages of other sites in a browser on this machine. Such a request
	// could add a fault.
	own := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if notify.OnLoopback(local) && !notify.LoopbackHost(r.Host) {
			writeError(w, notify.Invalid("bad_host", "Host", "over loopback the Host header must be localhost or a loopback address"))
			return
		}
		own.ServeHTTP(w, r)
	})
}

// serveValue serves a GET route that answers with the value of v, as JSON.
func serveValue(mux *http.ServeMux, path string, v func() any) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, v()) })
}

// serveAction serves a route that calls action and then answers 204.
func serveAction(mux *http.ServeMux, pattern string, action func(r *http.Request) error) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := action(r); err != nil {
			writeError(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// serveSetting is like serveAction, but passes the JSON body of the request to action.
func serveSetting[T any](mux *http.ServeMux, pattern string, action func(v T) error) {
	serveAction(mux, pattern, func(r *http.Request) error {
		var v T
		if err := readJSON(r, &v); err != nil {
			return err
		}
		return action(v)
	})
}

func controlRoutes(s *Simulator, mux *http.ServeMux) {
	serveValue(mux, "/control/rules", func() any { return s.Rules() })
	mux.HandleFunc("POST /control/rules", func(w http.ResponseWriter, r *http.Request) {
		var rule Rule
		err := readJSON(r, &rule)
		if err == nil {
			rule, err = s.AddRule(rule)
		}
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusCreated, map[string]uint64{"number": rule.Number})
	})
	serveAction(mux, "DELETE /control/rules/{number}", func(r *http.Request) error {
		n, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
		if err != nil || !s.RemoveRule(n) {
			return notify.NotFound("rule")
		}
		return nil
	})
	serveValue(mux, "/control/latency", func() any {
		out := map[string]Latency{}
		for p := APNs; p <= allProviders; p++ {
			out[p.String()] = s.Latency(p)
		}
		return out
	})
	serveAction(mux, "PUT /control/latency/{provider}", func(r *http.Request) error { return putLatency(s, r) })
	serveValue(mux, "/control/apns", func() any {
		wire, stats := s.APNsWire()
		return struct {
			Wire
			Stats WireStats `json:"stats"`
		}{wire, stats}
	})
	serveSetting(mux, "PUT /control/apns", s.SetAPNsWire)
	serveValue(mux, "/control/receipts", func() any {
		return struct {
			Receipts
			Stats ReceiptStats `json:"stats"`
		}{s.Receipts(), s.ReceiptStats()}
	})
	serveSetting(mux, "PUT /control/receipts", s.SetReceipts)
	serveAction(mux, "PUT /control/optouts/{phone}", func(r *http.Request) error { s.OptOut(r.PathValue("phone")); return nil })
	serveAction(mux, "DELETE /control/optouts/{phone}", func(r *http.Request) error { s.OptIn(r.PathValue("phone")); return nil })
	serveAction(mux, "POST /control/reset", func(*http.Request) error { s.Reset(); return nil })
}

func putLatency(s *Simulator, r *http.Request) error {
	var p Provider
	if name := r.PathValue("provider"); name != "all" {
		if err := p.UnmarshalText([]byte(name)); err != nil {
			return err
		}
	}
	var l Latency
	if err := readJSON(r, &l); err != nil {
		return err
	}
	return s.SetLatency(p, l)
}

// Handler returns a handler that serves only the routes of the ledger. It is for programs that have
// a ledger without simulated providers.
func (l *Ledger) Handler() http.Handler {
	mux := http.NewServeMux()
	l.routes(mux)
	return mux
}

func (l *Ledger) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ledger/totals", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("settle") == "true" {
			l.Settle()
		}
		writeJSON(w, http.StatusOK, l.Summary())
	})
	serveValue(mux, "/ledger/order", func() any { l.Settle(); return l.Order() })
	serveValue(mux, "/ledger/bases", func() any { return l.Bases() })
	mux.HandleFunc("GET /ledger", func(w http.ResponseWriter, r *http.Request) {
		found := l.Lookup(r.FormValue("id"))
		if found == nil {
			writeError(w, notify.NotFound("notification"))
			return
		}
		writeJSON(w, http.StatusOK, found)
	})
	mux.HandleFunc("GET /ledger/duplicates", func(w http.ResponseWriter, r *http.Request) {
		limit, ok := queryUint(w, r, "limit", 1000, 1_000_000)
		if !ok {
			return
		}
		total := l.Summary().Duplicates
		pairs, recent := l.Duplicates(int(limit))
		writeJSON(w, http.StatusOK, map[string]any{"total": total, "pairs": pairs, "recent": recent})
	})
	mux.HandleFunc("GET /ledger/base", func(w http.ResponseWriter, r *http.Request) {
		base, err := notify.ParseBase(r.FormValue("base"))
		if err != nil {
			writeError(w, notify.Invalid("bad_base", "base", "must be a ULID"))
			return
		}
		if expected, ok := queryUint(w, r, "expected", 0, notify.MaxIndex); ok {
			writeJSON(w, http.StatusOK, l.baseReport(base, uint32(expected), r.FormValue("bits") == "true"))
		}
	})
	mux.HandleFunc("GET /ledger/arrivals", l.writeArrivals)
	mux.HandleFunc("GET /ledger/dump", l.writeDump)
	mux.HandleFunc("POST /ledger/check", l.writeCheck)
	serveAction(mux, "DELETE /ledger", func(*http.Request) error { return l.Reset() })
}

// CursorHeader is a header in the answers of /ledger/arrivals. It contains the cursor for the next
// call.
const CursorHeader = "Ledger-Cursor"

func (l *Ledger) writeArrivals(w http.ResponseWriter, r *http.Request) {
	var rows []byte
	next := l.arrivalsEnd()
	if r.FormValue("since") != "end" {
		since, ok := queryUint(w, r, "since", 0, math.MaxInt64)
		if !ok {
			return
		}
		var err error
		if rows, next, err = l.Arrivals(int64(since)); err != nil {
			writeError(w, err)
			return
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(CursorHeader, strconv.FormatInt(next, 10))
	_, _ = w.Write(rows)
}

func (l *Ledger) writeDump(w http.ResponseWriter, r *http.Request) {
	since, ok := queryUint(w, r, "since_ms", 0, math.MaxInt64)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	buf := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(buf)
	for d := range l.Since(time.UnixMilli(int64(since))) {
		if enc.Encode(d) != nil {
			return // the reader has closed the connection
		}
	}
	_ = buf.Flush()
}

// maxListed is the most missing ids that an answer lists. The count in the answer may be higher: it
// includes all missing ids.
const maxListed = 1000

func (l *Ledger) writeCheck(w http.ResponseWriter, r *http.Request) {
	out := struct {
		Checked  uint64   `json:"checked"`
		MissingN uint64   `json:"missing_count"`
		Missing  []string `json:"missing"`
	}{Missing: []string{}}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		id := lines.Text()
		if id == "" {
			continue
		}
		out.Checked++
		if l.Delivered(id) {
			continue
		}
		out.MissingN++
		if len(out.Missing) < maxListed {
			out.Missing = append(out.Missing, id)
		}
	}
	if err := lines.Err(); err != nil {
		writeError(w, notify.Invalid("bad_body", "", "must have one id on each line: "+err.Error()))
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// queryUint reads a number from the query. If the query does not contain the number, queryUint
// returns def. If the text is not a number from 0 to limit, queryUint answers 400 and returns
// false.
func queryUint(w http.ResponseWriter, r *http.Request, name string, def, limit uint64) (uint64, bool) {
	text := r.FormValue(name)
	if text == "" {
		return def, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit {
		writeError(w, notify.Invalid("bad_number", name, "must be a number from 0 to "+strconv.FormatUint(limit, 10)))
		return 0, false
	}
	return n, true
}

func readJSON(r *http.Request, v any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if _, ok := errors.AsType[*notify.Error](err); err != nil && !ok {
		return notify.Invalid("bad_json", "", err.Error())
	}
	return err
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func writeError(w http.ResponseWriter, err error) {
	e := &notify.Error{Code: "internal", Msg: err.Error()}
	if found, ok := errors.AsType[*notify.Error](err); ok {
		e = found
	}
	status := http.StatusInternalServerError
	switch e.Kind {
	case notify.KindInvalid:
		status = http.StatusBadRequest
	case notify.KindNotFound:
		status = http.StatusNotFound
	}
	// json.Marshal does not fail for strings.
	body, _ := json.Marshal(map[string]string{"code": e.Code, "field": e.Field, "message": e.Msg})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
