//go:build unix

package main

import "syscall"

// ownFiles makes what this process writes, whichever library does, its user's alone: a
// log, store, backup or archive that is moved out of its folder stays so.
func ownFiles() { syscall.Umask(0o077) }
