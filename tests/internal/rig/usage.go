package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// CPU is the processor time that groups of processes and their living children have used
// since they began, by /proc. A process that is gone adds nothing.
func CPU(groups map[string][]int) map[string]time.Duration {
	group := map[string]string{}
	for name, pids := range groups {
		for _, pid := range pids {
			group[strconv.Itoa(pid)] = name
		}
	}
	sums := map[string]time.Duration{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range all {
		b, _ := os.ReadFile(file)
		// The name of the program stands in parentheses and may hold anything.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 13 {
			continue
		}
		name, ok := group[filepath.Base(filepath.Dir(file))]
		if !ok {
			name, ok = group[f[1]] // its parent's
		}
		if ok {
			sums[name] += ticks(f[11]) + ticks(f[12])
		}
	}
	return sums
}

func ticks(text string) time.Duration {
	n, _ := strconv.ParseInt(text, 10, 64)
	return time.Duration(n) * tick
}

// MachineCPU is the processor time that everything on this machine has used since it
// began, over all cores. Time that the host gave to others counts: it was not ours to use.
func MachineCPU() (sum time.Duration) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		if i >= 1 && i <= 8 && i != 4 && i != 5 { // not idle, not waiting for a disk
			sum += ticks(f)
		}
	}
	return sum
}

// RSS is the resident memory of a process in MiB, 0 where /proc does not say.
func RSS(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(fields[1])
	return pages * os.Getpagesize() >> 20
}

// Listeners returns the processes that listen on the ports of host:port addresses, with
// commas between. It returns an error for a port on which no process of this machine is
// seen to listen.
func Listeners(addresses string) (pids []int, err error) {
	for _, address := range strings.Split(addresses, ",") {
		pid, err := listener(address)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// listener looks for the socket in the kernel's tables, then for the process that holds it.
// Several nodes may share a port, each at an address of its own.
func listener(address string) (int, error) {
	host, port, _ := strings.Cut(address, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, fmt.Errorf("%q is no host:port: %w", address, err)
	}
	var a [4]byte
	if _, err := fmt.Sscanf(host, "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3]); err != nil {
		return 0, fmt.Errorf("%q is no IPv4 address with a port: %w", address, err)
	}
	end := fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], n) // of IPv4, and of IPv4 in IPv6
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], end) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range files {
		if to, _ := os.Readlink(fd); sockets[to] {
			return strconv.Atoi(strings.Split(fd, "/")[2])
		}
	}
	return 0, fmt.Errorf("no process of this machine is seen to listen on %s: the program needs Linux, and the rights of the servers' user", address)
}
