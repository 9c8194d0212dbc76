package app

import (
	"fmt"
	"slices"

	"github.com/prometheus/procfs"
)

// listenerOf returns the process that listens on a TCP port. It returns pid 0 if the process is not
// known, or if the operating system does not show it to this process.
func listenerOf(port uint64) (pid int, name string) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, ""
	}
	const listening = 10 // TCP_LISTEN of the kernel
	var sockets []string
	v4, _ := fs.NetTCP()  //nolint:staticcheck // netlink would be one more dependency, for a message
	v6, _ := fs.NetTCP6() //nolint:staticcheck // netlink would be one more dependency, for a message
	for _, s := range append(v4, v6...) {
		if s.LocalPort == port && s.St == listening {
			sockets = append(sockets, fmt.Sprintf("socket:[%d]", s.Inode))
		}
	}
	procs, err := fs.AllProcs()
	if err != nil || len(sockets) == 0 {
		return 0, ""
	}
	for _, p := range procs {
		targets, err := p.FileDescriptorTargets()
		if err != nil || !slices.ContainsFunc(targets, func(t string) bool { return slices.Contains(sockets, t) }) {
			continue
		}
		name, err := p.Comm()
		if err != nil {
			continue // the process has just ended
		}
		return p.PID, name
	}
	return 0, ""
}
