package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/rows"
)

type partitions struct {
	rows.Partitions
	plan *Plan
}

// NewPartitions wraps next. Contracts of pkg/store over the result fail when its rows do.
func NewPartitions(next rows.Partitions, p *Plan) rows.Partitions { return partitions{next, p} }

func (w partitions) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	return Get(ctx, w.plan, "Rows.Swap", func() (bool, error) { return w.Partitions.Swap(ctx, cs...) })
}
