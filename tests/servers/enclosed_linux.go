package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// socketFD is the file descriptor of the socket through which the program in the namespace sends
// its listeners to the process that started it.
const socketFD = 3

// startEnclosed starts cmd in a new network namespace. It returns a listener in the namespace for
// each address, in the same order. It needs root, or a kernel with user namespaces.
func startEnclosed(cmd *exec.Cmd, addresses []string) ([]net.Listener, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "enclosed")
	defer unix.Close(pair[0])
	cmd.Args = append([]string{self, enclosed, joined(addresses), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = self
	cmd.ExtraFiles = []*os.File{theirs}
	rig.DieWithStarter(cmd).SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start a process in a new network namespace, which needs root or user namespaces: %w", err)
	}
	listeners, err := receiveListeners(pair[0], len(addresses))
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return listeners, err
}

// receiveListeners waits until runEnclosed has sent n listeners, and returns the listeners.
func receiveListeners(socket, n int) (out []net.Listener, err error) {
	oob := make([]byte, unix.CmsgSpace(4*n))
	_, got, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:got])
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, errors.New("the network namespace could not be prepared; see the log of the process")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "listener")
		l, failed := net.FileListener(f)
		f.Close()
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		out = append(out, l)
	}
	if err == nil && len(out) != n {
		err = fmt.Errorf("received only %d of %d listeners from the network namespace", len(out), n)
	}
	return out, err
}

// runEnclosed runs in a new network namespace, in which even the loopback interface is down. It
// starts the interface, listens at the addresses, and sends the listeners to its parent
// process. Then it replaces this process with the program (exec). It returns only if one of
// these steps fails.
func runEnclosed(addresses string, program []string) error {
	if err := raiseLoopback(); err != nil {
		return fmt.Errorf("cannot start the loopback interface of the namespace: %w", err)
	}
	var fds []int
	for a := range strings.SplitSeq(addresses, ",") {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", a)
		if err != nil {
			return err
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		fds = append(fds, int(f.Fd()))
	}
	if err := unix.Sendmsg(socketFD, []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		return err
	}
	unix.CloseOnExec(socketFD)
	return syscall.Exec(program[0], program, os.Environ())
}

func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}
