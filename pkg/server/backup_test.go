package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

// fakeSnapshot writes what it holds, and breaks off with err.
type fakeSnapshot struct {
	data   []byte
	err    error
	closed *bool
}

func (f fakeSnapshot) Write(_ context.Context, w io.Writer) error {
	_, err := w.Write(f.data)
	return errors.Join(err, f.err)
}

func (f fakeSnapshot) Close() error {
	if f.closed != nil {
		*f.closed = true
	}
	return nil
}

func noBackup(context.Context) (Snapshot, error) { return fakeSnapshot{}, nil }

// A backup that breaks off must not look like one that came to its end.
func TestBackupThatBreaksOff(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]error{"whole": nil, "broken": errors.New("disk")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			closed := false
			c := w.serving(t, func(d *Deps) {
				d.Backup = func(context.Context) (Snapshot, error) {
					return fakeSnapshot{bytes.Repeat([]byte("x"), 100_000), broken, &closed}, nil
				}
			}, api.ScopeOperate)
			var got bytes.Buffer
			n, err := c.Backup(t.Context(), &got)
			if (err == nil) != (broken == nil) {
				t.Errorf("error %v", err)
			}
			if broken == nil && (n != 100_000 || got.Len() != 100_000) {
				t.Errorf("%d bytes", n)
			}
		})
	}
}
