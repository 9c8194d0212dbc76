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

// CPU returns the processor time that each group of processes has used since the processes started,
// as /proc says. The parameter groups has the process ids of each group, by the group's name. The
// children of these processes count, too. A process that has ended does not count.
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
		// The name of the program is in parentheses and may contain any character.
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
// all cores. It includes steal time, which the host gave to other machines, because no process here
// could use that time.
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

// Listeners returns the ids of the processes that listen on addresses, a list of host:port
// separated by commas. It returns an error if it does not find, for every address, a process of
// this machine that listens there.
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

// listener returns the process that listens on address. First it finds the socket in the kernel's
// tables, and then the process that has the socket open. It compares the whole address, because
// several nodes may have the same port with different hosts.
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
	// In both tables the local address of a socket that listens on host and port ends with this
	// text. In tcp6 the IPv4 address is the end of an IPv6 address.
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
