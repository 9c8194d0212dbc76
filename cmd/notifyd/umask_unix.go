//go:build unix

package main

import "syscall"

// restrictFileModes sets the umask. Every file that this process or one of its libraries writes is then
// readable only by its user. A log, store, backup or archive that is moved out of its folder keeps this
// mode.
func restrictFileModes() { syscall.Umask(0o077) }
