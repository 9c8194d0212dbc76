package notify

import "context"

type beforeActKey struct{}

// WithBeforeAct returns a context that carries the function check. A service calls this function by
// calling BeforeAct, after its own checks have passed and before it changes anything.
func WithBeforeAct(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, beforeActKey{}, check)
}

// BeforeAct calls the function that WithBeforeAct put into ctx. Without such a function it returns nil.
// A service calls BeforeAct directly before its first write, and again before each retry. An error of
// BeforeAct means that the audit log could not record the operation. The service must then change
// nothing and return the error.
func BeforeAct(ctx context.Context) error {
	if before, ok := ctx.Value(beforeActKey{}).(func() error); ok {
		return before()
	}
	return nil
}
