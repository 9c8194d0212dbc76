package redis

import (
	"context"
	"time"
)

// Now is the server's clock, which every process that asks it shares.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	t, err := s.c.Time(ctx).Result()
	return t, translate(err)
}
