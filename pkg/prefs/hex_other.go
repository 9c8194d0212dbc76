//go:build !amd64

package prefs

// hexAppend appends the digits of kept.
func hexAppend(b, kept []byte) []byte { return hexWords(b, kept) }
