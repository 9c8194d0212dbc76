package notify

import "context"

type beforeAct struct{}

// WithBeforeAct returns a context under which services call before once their own
// checks have passed and before they change anything.
func WithBeforeAct(ctx context.Context, before func() error) context.Context {
	return context.WithValue(ctx, beforeAct{}, before)
}

// BeforeAct calls the function of WithBeforeAct, or does nothing where ctx has none.
// A service calls it right before its first write, and on each further try. When it
// returns an error the service changes nothing and returns that error: the act could
// not be recorded.
func BeforeAct(ctx context.Context) error {
	if before, ok := ctx.Value(beforeAct{}).(func() error); ok {
		return before()
	}
	return nil
}
