//go:build unix

package main

import "syscall"

// restrictFileModes makes every file that this process or a library in it writes readable
// by its user alone. A log, store, backup or archive that is moved out of its folder keeps
// that mode.
func restrictFileModes() { syscall.Umask(0o077) }
