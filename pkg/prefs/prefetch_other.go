//go:build !amd64 && !arm64

package prefs

func prefetch(*uintptr, int) {}
