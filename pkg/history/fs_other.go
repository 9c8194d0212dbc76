//go:build !linux

package history

// SyncData makes the content durable.
func (f osFile) SyncData() error { return f.Sync() }

// WriteBack does nothing: the hint exists on Linux only.
func (f osFile) WriteBack(off, n int64) {}

// Forget does nothing: the hint exists on Linux only.
func (f osFile) Forget() {}
