package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/notify"
)

// changesChannel is what writers notify of profiles.
const changesChannel = "notifyd_profiles"

// relisten is how long Listen waits before it connects anew.
const relisten = 500 * time.Millisecond

// Listen calls wake after each change of profiles that another or this process
// committed, and after each time it could have missed some; it connects anew by
// itself and returns nil when ctx ends. wake must not block. It only makes
// followers look sooner: a notification that is lost costs them their poll.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	for ctx.Err() == nil {
		// Whatever ended it, polling goes on and says what is wrong.
		_ = s.listenOnce(ctx, wake)
		notify.Sleep(ctx, relisten)
	}
	return nil
}

// listenOnce listens on a connection of its own: one of the pool would be lost to
// the calls.
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
		if err := s.next(ctx, conn); err != nil {
			return err
		}
	}
}

// quiet is how long a listener hears nothing before it asks whether the server
// is still there: a host that vanished sends nothing, and no end either.
const quiet = 15 * time.Second

func (s *Store) next(ctx context.Context, conn *pgx.Conn) error {
	for {
		wait, cancel := context.WithTimeout(ctx, quiet)
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
