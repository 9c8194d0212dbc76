//go:build !linux

package main

import (
	"errors"
	"net"
	"os/exec"
)

var errNoNamespaces = errors.New("network namespaces need Linux")

func startEnclosed(*exec.Cmd, []string) ([]net.Listener, error) { return nil, errNoNamespaces }

func runEnclosed(string, []string) error { return errNoNamespaces }
