//go:build !linux

package rig

import "os/exec"

// DieWithStarter returns c unchanged. Only Linux can kill a process when its starter ends.
func DieWithStarter(c *exec.Cmd) *exec.Cmd { return c }
