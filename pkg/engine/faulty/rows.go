package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/rows"
)

type partitions struct {
	rows.Partitions
	plan *Plan
}

// NewPartitions wraps inner. A contract of pkg/store that uses the result fails when a Swap of the
// rows fails.
func NewPartitions(inner rows.Partitions, p *Plan) rows.Partitions { return partitions{inner, p} }

func (w partitions) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	return Get(ctx, w.plan, "Rows.Swap", func() (bool, error) { return w.Partitions.Swap(ctx, cs...) })
}
