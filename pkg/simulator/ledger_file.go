package simulator

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"unicode/utf8"
)

// ledgerFile appends one JSON line per receiver:
//
//	{"seq":1,"at":1790000000000000000,"provider":"apns","outcome":"accepted","status":200,
//	 "id":"ntf_...","attempt":"...","addr":"<16 hex digits>","usr":"u1","useq":7}
//
// at is in Unix nanoseconds, addr is the 64-bit xxHash of the address; empty
// fields are left out. Lines reach the file within flushEvery, which is good
// enough against the death of the product: the simulator of such a run is a
// process of its own.
type ledgerFile struct {
	full chan struct{} // holds one: a write is worth it

	writing sync.Mutex // held over a write; taken before mu
	f       *os.File
	spare   []byte // the buffer not in use

	mu  sync.Mutex // never held over a write: a slow disk must not slow the providers
	buf []byte
	err error // the first failure; nothing is written after it
}

const (
	ledgerBuffer  = 256 << 10 // this much asks for a write
	ledgerBacklog = 32 << 20  // with this much the recorder has to write itself
)

// ledgerLine is a line as the reader sees it.
type ledgerLine struct {
	Seq      uint64   `json:"seq"`
	At       int64    `json:"at"`
	Provider Provider `json:"provider"`
	Outcome  string   `json:"outcome"`
	Status   int      `json:"status"`
	ID       string   `json:"id"`
	Attempt  string   `json:"attempt"`
	Addr     string   `json:"addr"`
	User     string   `json:"usr"`
	UserSeq  uint64   `json:"useq"`
}

// openLedgerFile opens or creates the file at path, counts what it holds into l,
// and leaves it ready for more. A last line that was cut off is removed.
func openLedgerFile(path string, l *Ledger) (*ledgerFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	end, err := l.replay(f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger file %s: %w", path, err), f.Close())
	}
	return &ledgerFile{full: make(chan struct{}, 1), f: f}, nil
}

// replay counts the whole lines of r and returns where they end.
func (l *Ledger) replay(r io.Reader) (int64, error) {
	var end int64
	br := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil // a line without its end was being written when the writer died
		}
		if err != nil {
			return 0, err
		}
		e, err := parseLedgerLine(line)
		if err != nil {
			return 0, fmt.Errorf("at byte %d: %w", end, err)
		}
		if end == 0 {
			l.start.Store(e.at)
		}
		l.apply(&e)
		l.seq.Store(max(l.seq.Load(), e.seq))
		end += int64(len(line))
	}
}

func parseLedgerLine(line []byte) (entry, error) {
	var v ledgerLine
	if err := json.Unmarshal(line, &v); err != nil {
		return entry{}, err
	}
	if v.Provider < 1 || v.Provider > providers {
		return entry{}, fmt.Errorf("provider %d has no receivers", v.Provider)
	}
	addr, err := strconv.ParseUint(v.Addr, 16, 64)
	if err != nil {
		return entry{}, err
	}
	e := entry{seq: v.Seq, at: v.At, provider: v.Provider, status: v.Status, id: v.ID, attempt: v.Attempt, addr: addr, user: v.User, userSeq: v.UserSeq}
	for i, n := range outcomeNames {
		if n == v.Outcome {
			e.outcome = Outcome(i)
			return e, nil
		}
	}
	return entry{}, fmt.Errorf("unknown outcome %q", v.Outcome)
}

func (w *ledgerFile) append(e *entry) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.buf = appendLedgerLine(w.buf, e)
	n := len(w.buf)
	w.mu.Unlock()
	if n >= ledgerBacklog {
		_ = w.flush() // a failure is kept, and Run's next flush returns it
	} else if n >= ledgerBuffer {
		select {
		case w.full <- struct{}{}:
		default:
		}
	}
}

// flush writes what was appended before it was called.
func (w *ledgerFile) flush() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	b, err := w.buf, w.err
	w.buf = w.spare[:0]
	w.mu.Unlock()
	w.spare = b
	if err == nil && len(b) > 0 {
		if _, err = w.f.Write(b); err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
		}
	}
	return err
}

func (w *ledgerFile) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// truncate empties the file and drops what waits for it.
func (w *ledgerFile) truncate() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.buf[:0]
	if w.err == nil {
		w.err = w.f.Truncate(0)
	}
	if w.err == nil {
		_, w.err = w.f.Seek(0, io.SeekStart)
	}
	return w.err
}

func appendLedgerLine(b []byte, e *entry) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, e.seq, 10)
	b = append(b, `,"at":`...)
	b = strconv.AppendInt(b, e.at, 10)
	b = append(b, `,"provider":"`...)
	b = append(b, e.provider.String()...)
	b = append(b, `","outcome":"`...)
	b = append(b, e.outcome.String()...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	b = appendField(b, "id", e.id)
	b = appendField(b, "attempt", e.attempt)
	b = append(b, `,"addr":"`...)
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, "0123456789abcdef"[e.addr>>shift&15])
	}
	b = append(b, '"')
	if e.user != "" {
		b = appendField(b, "usr", e.user)
		b = append(b, `,"useq":`...)
		b = strconv.AppendUint(b, e.userSeq, 10)
	}
	return append(b, '}', '\n')
}

// appendField appends a member unless it is empty. Ids are plain ASCII, which
// needs no escaping; anything else takes the slow way.
func appendField(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	for i := range len(v) {
		if c := v[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			q, _ := json.Marshal(v) // a string always marshals
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}
