//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// isolate makes c run in a new network namespace and a new mount namespace.
func isolate(c *exec.Cmd) {
	rig.DieWithStarter(c).SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
}

// nameServer is the address of the name server in the namespace.
const nameServer = "127.0.0.53"

// mostMemory is the limit of writable memory of each process in the namespace, in bytes.
const mostMemory = 4 << 30

// enterWorld prepares the namespace. Every address becomes an address of this machine, and
// nameServer becomes the name server. enterWorld also limits the memory of this process and of its
// children. The process must run in its own namespaces (see isolate).
func enterWorld(dir string) error {
	// A server that needs more memory ends; then the try got through. Without this limit such a
	// server could exhaust the machine.
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: mostMemory, Max: mostMemory}); err != nil {
		return fmt.Errorf("set the memory limit: %w", err)
	}
	if err := bringUp("lo"); err != nil {
		return fmt.Errorf("start the interface lo: %w", err)
	}
	for _, family := range []uint8{syscall.AF_INET, syscall.AF_INET6} {
		if err := ownEveryAddress(family); err != nil {
			return fmt.Errorf("add the local route of address family %d: %w", family, err)
		}
	}
	// Make mounts private, so that the next mount does not appear outside this namespace.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+nameServer+"\noptions timeout:1 attempts:2\n"), 0o600); err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return err
	}
	return syscall.Mount(conf, target, "", syscall.MS_BIND, "")
}

// bringUp does the same as the command "ip link set <name> up".
func bringUp(name string) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var req struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:], name)
	req.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	_, _, no := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req)))
	if no != 0 {
		return no
	}
	return nil
}

// ownEveryAddress does the same as the command "ip route add local 0.0.0.0/0 dev lo" (for AF_INET6
// with ::/0). After that, every address of the family belongs to this machine.
func ownEveryAddress(family uint8) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	const size = syscall.SizeofNlMsghdr + syscall.SizeofRtMsg + syscall.SizeofRtAttr + 4
	order := binary.NativeEndian
	b := make([]byte, 0, size)
	b = order.AppendUint32(b, size)
	b = order.AppendUint16(b, syscall.RTM_NEWROUTE)
	b = order.AppendUint16(b, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|syscall.NLM_F_CREATE)
	b = append(b,
		1, 0, 0, 0, 0, 0, 0, 0, // sequence, port
		// No destination: the route applies to every address.
		family, 0, 0, 0, syscall.RT_TABLE_LOCAL, syscall.RTPROT_BOOT, syscall.RT_SCOPE_HOST, syscall.RTN_LOCAL, 0, 0, 0, 0)
	b = order.AppendUint16(b, syscall.SizeofRtAttr+4)
	b = order.AppendUint16(b, syscall.RTA_OIF)
	b = order.AppendUint32(b, 1) // lo
	if err := syscall.Sendto(fd, b, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	var in [4096]byte
	n, _, err := syscall.Recvfrom(fd, in[:], 0)
	if err != nil {
		return err
	}
	if n >= syscall.SizeofNlMsghdr+4 {
		if no := -int32(order.Uint32(in[syscall.SizeofNlMsghdr:])); no != 0 {
			return syscall.Errno(no)
		}
	}
	return nil
}
