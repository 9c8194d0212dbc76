package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/rows"
)

type partitions struct {
	rows.Partitions
	plan *Plan
}

// NewPartitions wraps next. If pkg/store runs over the result, a contract of pkg/store
// fails when a Swap of the rows fails.
func NewPartitions(next rows.Partitions, p *Plan) rows.Partitions { return partitions{next, p} }

func (w partitions) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	return Get(ctx, w.plan, "Rows.Swap", func() (bool, error) { return w.Partitions.Swap(ctx, cs...) })
}
