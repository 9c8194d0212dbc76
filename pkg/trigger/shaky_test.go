package trigger

import (
	"context"
	"errors"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

var errDown = notify.Unavailable("store", 0, errors.New("injected"))

// slip is what happens to a call of a store: an error, before or after the call was executed. The
// function after runs when the call was executed.
type slip struct {
	err     error
	applied bool
	after   func()
}

// shaky is a trigger store whose calls fail as the function on says.
type shaky struct {
	engine.Triggers
	on func(method string, ids []string) slip
}

func (s *shaky) do(method string, ids []string, call func() error) error {
	x := slip{}
	if s.on != nil {
		x = s.on(method, ids)
	}
	if x.err != nil && !x.applied {
		return x.err
	}
	err := call()
	if x.after != nil {
		x.after()
	}
	if x.err != nil {
		return x.err
	}
	return err
}

func (s *shaky) Create(ctx context.Context, ts []engine.Trigger) (won []bool, err error) {
	var ids []string
	for i := range ts {
		ids = append(ids, ts[i].ID)
	}
	err = s.do("Create", ids, func() (err error) { won, err = s.Triggers.Create(ctx, ts); return err })
	return won, err
}

func (s *shaky) Get(ctx context.Context, ids []string) (rows []engine.Trigger, err error) {
	err = s.do("Get", ids, func() (err error) { rows, err = s.Triggers.Get(ctx, ids); return err })
	return rows, err
}

func (s *shaky) Swap(ctx context.Context, ss []engine.TriggerSwap) (won []bool, err error) {
	var ids []string
	for i := range ss {
		ids = append(ids, ss[i].New.ID)
	}
	err = s.do("Swap", ids, func() (err error) { won, err = s.Triggers.Swap(ctx, ss); return err })
	return won, err
}
