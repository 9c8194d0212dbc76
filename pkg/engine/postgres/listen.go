package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/notify"
)

// changesChannel is the NOTIFY channel of profiles. A writer of a profile sends a
// notification to it.
const changesChannel = "notifyd_profiles"

// reconnectDelay is how long Listen waits before it connects again.
const reconnectDelay = 500 * time.Millisecond

// Listen calls wake after each change of profiles that any process commits, and whenever it may
// have missed changes. It reconnects by itself and returns nil when ctx ends. The function wake
// must not block. Listen only makes followers read sooner: if a notification is lost, they read the
// change at their next poll.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	for ctx.Err() == nil {
		// The error is ignored, because followers also poll and get the error from their
		// calls.
		_ = s.listenOnce(ctx, wake)
		notify.Sleep(ctx, reconnectDelay)
	}
	return nil
}

// listenOnce listens on a separate connection, so that it does not occupy a connection of
// the pool.
func (s *Store) listenOnce(ctx context.Context, wake func()) error {
	cfg := s.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+changesChannel); err != nil {
		return err
	}
	for {
		wake()
		if err := s.waitForChange(ctx, conn); err != nil {
			return err
		}
	}
}

// listenQuiet is how long a listener waits for a notification before it pings the server.
// The ping is needed because a host that has lost power or network sends nothing and does
// not close the connection.
const listenQuiet = 15 * time.Second

// waitForChange waits for a notification and returns nil. It returns an error if ctx ends
// or the connection fails.
func (s *Store) waitForChange(ctx context.Context, conn *pgx.Conn) error {
	for {
		wait, cancel := context.WithTimeout(ctx, listenQuiet)
		_, err := conn.WaitForNotification(wait)
		cancel()
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			return err
		}
		ping, cancel := context.WithTimeout(ctx, s.timeout)
		err = conn.Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
}
