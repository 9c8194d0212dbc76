package server

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Snapshot is everything the server keeps, as of one moment.
type Snapshot interface {
	// Write writes it; an error may come in the middle.
	Write(ctx context.Context, w io.Writer) error
	Close() error
}

// streamBackup streams a backup. Its manifest comes first: a reader notices a backup that
// breaks off by the files that are missing.
func streamBackup(x *exchange) error {
	if x.srv.deps.Backup == nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "backup_unavailable", Msg: "this server keeps nothing itself: back up its engines"}
	}
	if x.r.Method == http.MethodHead {
		x.write(http.StatusOK, nil)
		return nil
	}
	if err := x.record(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	draining := x.srv.draining // x is another request's once this one is answered
	go func() {                // a drain does not wait for gigabytes
		select {
		case <-draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	snap, err := x.srv.deps.Backup(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := snap.Close(); err != nil {
			x.srv.deps.Log.Warn("cleaning up after a backup", "err", err)
		}
	}()
	h := x.w.Header()
	h["Content-Type"], h["Cache-Control"] = []string{api.TypeBackup}, noStore
	x.w.WriteHeader(http.StatusOK)
	x.status = http.StatusOK
	if err := snap.Write(ctx, &paced{x}); err != nil {
		x.srv.deps.Log.Warn("backup broke off", "err", err, "bytes", x.out)
		panic(http.ErrAbortHandler) // else the client would take it for the end
	}
	return nil
}

// paced is the answer's body with a limit for each write: who does not read is
// cut off.
type paced struct{ x *exchange }

func (p *paced) Write(b []byte) (int, error) {
	p.x.deadlines(time.Time{}, time.Now().Add(p.x.srv.cfg.WriteTimeout))
	n, err := p.x.w.Write(b)
	p.x.out += int64(n)
	return n, err
}
