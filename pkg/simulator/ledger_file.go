package simulator

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
)

// ledgerFile appends one JSON line per receiver:
//
//	{"seq":1,"at":1790000000000000000,"provider":"apns","outcome":"accepted","status":200,
//	 "id":"ntf_...","attempt":"...","addr":"<16 hex digits>","usr":"u1","useq":7}
//
// The field "at" is in Unix nanoseconds. The field "addr" is the 64-bit xxHash of the address.
// Empty fields are left out. A line is in the file at most flushEvery after it was appended. A
// crash of the simulator may lose lines that are not in the file yet. This is acceptable, because
// the tests kill only notifyd, and the simulator then runs in a process of its own.
type ledgerFile struct {
	writeMu sync.Mutex // held during a write; must be locked before mu
	f       *os.File
	spare   []byte // the buffer that is not in use; writeMu guards it

	mu  sync.Mutex // never held during a write, so that a slow disk does not delay the providers
	buf []byte     // lines that were not written yet
	err error      // first error; after it nothing is written
}

type ledgerLine struct {
	Seq      uint64   `json:"seq"`
	At       int64    `json:"at"`
	Provider Provider `json:"provider"`
	Outcome  string   `json:"outcome"`
	Status   int      `json:"status"`
	ID       string   `json:"id,omitempty"`
	Attempt  string   `json:"attempt,omitempty"`
	Addr     string   `json:"addr"`
	User     string   `json:"usr,omitempty"`
	UserSeq  uint64   `json:"useq,omitempty"`
}

// openLedgerFile opens or creates the file at path. It adds the receivers in the file to the counts
// of l, and prepares the file for more lines. If the last line is incomplete, it removes that line.
func openLedgerFile(path string, l *Ledger) (*ledgerFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	end, err := replayLines(l, f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger file %s: %w", path, err), f.Close())
	}
	return &ledgerFile{f: f}, nil
}

// replayLines adds the receivers in the complete lines of r to the counts of l. It returns the
// offset of their end.
func replayLines(l *Ledger, r io.Reader) (int64, error) {
	var end int64
	br := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil // line is empty, or the process ended while it wrote the line
		}
		if err != nil {
			return 0, err
		}
		e, err := parseLedgerLine(line)
		if err != nil {
			return 0, fmt.Errorf("at byte %d: %w", end, err)
		}
		l.mu.Lock()
		l.countEntry(&e)
		l.spillIfFull()
		l.mu.Unlock()
		end += int64(len(line))
	}
}

func parseLedgerLine(line []byte) (ledgerEntry, error) {
	var v ledgerLine
	if err := json.Unmarshal(line, &v); err != nil {
		return ledgerEntry{}, err
	}
	if v.Provider < 1 || v.Provider > receiverProviders {
		return ledgerEntry{}, fmt.Errorf("the provider %s has no receivers", v.Provider)
	}
	addr, err := strconv.ParseUint(v.Addr, 16, 64)
	if err != nil {
		return ledgerEntry{}, err
	}
	outcome := slices.Index(outcomeNames[:], v.Outcome)
	if outcome < 0 {
		return ledgerEntry{}, fmt.Errorf("unknown outcome %q", v.Outcome)
	}
	return ledgerEntry{
		seq: v.Seq, at: v.At, provider: v.Provider, outcome: Outcome(outcome), status: v.Status,
		id: v.ID, attempt: v.Attempt, addr: addr, user: v.User, userSeq: v.UserSeq,
	}, nil
}

func appendLedgerLine(b []byte, e *ledgerEntry) []byte {
	v := ledgerLine{e.seq, e.at, e.provider, e.outcome.String(), e.status, e.id, e.attempt, fmt.Sprintf("%016x", e.addr), e.user, e.userSeq}
	return append(append(b, mustJSON(v)...), '\n')
}

func (w *ledgerFile) appendEntry(e *ledgerEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.buf = appendLedgerLine(w.buf, e)
	}
}

// flush writes the lines that were appended before the call of flush.
func (w *ledgerFile) flush() error {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
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

// truncate empties the file. It drops the lines that were not written yet.
func (w *ledgerFile) truncate() error {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
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

func (w *ledgerFile) close() error { return errors.Join(w.flush(), w.f.Close()) }
