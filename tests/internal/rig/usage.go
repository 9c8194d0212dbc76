package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc. It is the same on every Linux that Go supports.
const tick = 10 * time.Millisecond

// CPU returns the processor time of each group of processes since their start, as /proc says. The
// map groups has the process ids of each group, by the name of the group. The children of these
// processes count, too. Processes that have ended do not count.
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
		// Read the fields after the last ")". The name of the program stands before it, in
		// parentheses, and may contain any character.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 13 {
			continue
		}
		name, ok := group[filepath.Base(filepath.Dir(file))]
		if !ok {
			name, ok = group[f[1]] // the group of the parent
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

// MachineCPU returns the processor time that was used on this machine since it started, summed over
// all cores. Steal time counts as used: the host gave it to other machines, so no process here
// could use it.
func MachineCPU() (sum time.Duration) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		if i >= 1 && i <= 8 && i != 4 && i != 5 { // without the fields idle and iowait
			sum += ticks(f)
		}
	}
	return sum
}

// RSS returns the resident memory of a process in MiB, or 0 if /proc cannot be read.
func RSS(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(fields[1])
	return pages * os.Getpagesize() >> 20
}

// Listeners returns the ids of the processes that listen on the given addresses, which are a list
// of host:port separated by commas. It returns an error if no process of this machine listens on
// one of the addresses.
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

// listener returns the id of the process that listens on the given address. It finds the socket in
// the tables of the kernel, and then the process that has this socket open. It compares host and
// port, because several nodes may have the same port on different hosts.
func listener(address string) (int, error) {
	host, port, _ := strings.Cut(address, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, fmt.Errorf("the address %q must be host:port: %w", address, err)
	}
	var a [4]byte
	if _, err := fmt.Sscanf(host, "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3]); err != nil {
		return 0, fmt.Errorf("the address %q must be an IPv4 address with a port: %w", address, err)
	}
	// end is the address as the two tables below write it, at the end of their field for the local
	// address. In the table tcp6 an IPv4 address is the end of an IPv6 address.
	end := fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], n)
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
	return 0, fmt.Errorf("found no process on this machine that listens on %s; this program must run on Linux, as root or as the user who runs that server", address)
}
