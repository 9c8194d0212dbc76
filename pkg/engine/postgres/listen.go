package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/notify"
)

// changesChannel is the channel that writers of profiles NOTIFY.
const changesChannel = "notifyd_profiles"

// reconnectDelay is how long Listen waits before it connects again.
const reconnectDelay = 500 * time.Millisecond

// Listen calls wake after each change of profiles that any process commits, and whenever it
// may have missed changes. It reconnects by itself and returns nil when ctx ends. wake must
// not block. Listen only makes followers read sooner: after a lost notification they read
// at their next poll.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	for ctx.Err() == nil {
		// The error is dropped: followers also poll, and their calls report what is wrong.
		_ = s.listenOnce(ctx, wake)
		notify.Sleep(ctx, reconnectDelay)
	}
	return nil
}

// listenOnce listens on a connection of its own, so that no connection of the pool is
// occupied.
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

// listenQuiet is how long a listener receives nothing before it pings the server. A host
// that has vanished sends nothing and does not close the connection either.
const listenQuiet = 15 * time.Second

// waitForChange returns nil after a notification.
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
