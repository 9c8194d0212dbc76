package notify

import "context"

type beforeActKey struct{}

// WithBeforeAct returns a context that carries before. A service calls it through BeforeAct
// after its own checks have passed and before it changes anything.
func WithBeforeAct(ctx context.Context, before func() error) context.Context {
	return context.WithValue(ctx, beforeActKey{}, before)
}

// BeforeAct calls the function that WithBeforeAct put into ctx, if any. A service calls it right
// before its first write, and again before each retry. If BeforeAct returns an error, the audit
// log could not record the operation: the service changes nothing and returns the error.
func BeforeAct(ctx context.Context) error {
	if before, ok := ctx.Value(beforeActKey{}).(func() error); ok {
		return before()
	}
	return nil
}
