package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// network is a network namespace. A virtual cable (a veth pair) connects it to the namespace of
// this program. A process in the network can reach every address of the program's namespace, but no
// address of another namespace.
type network struct {
	name      string
	near, far string // addresses of the two ends of the cable: in this program's namespace, in the network
	cable     string // interface name of the end in this program's namespace
}

// newNetwork makes the network with number k: a namespace and its cable. It needs root and the
// command ip.
func newNetwork(ctx context.Context, k int) *network {
	n := &network{
		name: fmt.Sprintf("notifyd%d-%d", os.Getpid(), k), cable: fmt.Sprintf("nd%d-%d", os.Getpid()%100_000, k),
		near: fmt.Sprintf("10.78.%d.1", k), far: fmt.Sprintf("10.78.%d.2", k),
	}
	ip(ctx, "netns", "add", n.name)
	// Turn IPv6 off. Otherwise the kernel sends IPv6 packets itself (neighbour discovery), and the
	// method packets would count them as packets of the run.
	n.inside(ctx, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")
	ip(ctx, "link", "add", n.cable, "type", "veth", "peer", "name", "eth0", "netns", n.name)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+n.cable+"/disable_ipv6", []byte("1"), 0o600) // fails if the kernel has no IPv6
	ip(ctx, "addr", "add", n.near+"/30", "dev", n.cable)
	ip(ctx, "link", "set", n.cable, "up")
	ip(ctx, "-n", n.name, "addr", "add", n.far+"/30", "dev", "eth0")
	ip(ctx, "-n", n.name, "link", "set", "lo", "up")
	ip(ctx, "-n", n.name, "link", "set", "eth0", "up")
	ip(ctx, "-n", n.name, "route", "add", "default", "via", n.near)
	return n
}

func (n *network) remove() {
	if out, err := exec.Command("ip", "netns", "del", n.name).CombinedOutput(); err != nil { // without a ctx, because it must also work after the run's ctx has ended
		fmt.Printf("could not remove the network %s: %v %s\n", n.name, err, out)
	}
}

// command returns a command that runs in the network.
func (n *network) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.name}, args...)...)
}

func (n *network) inside(ctx context.Context, args ...string) {
	if out, err := n.command(ctx, args...).CombinedOutput(); err != nil {
		panic(fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out))
	}
}

// packets returns the number of packets that were sent from this program's namespace to the network
// so far.
func (n *network) packets() int {
	b := rig.Must(os.ReadFile("/sys/class/net/" + n.cable + "/statistics/tx_packets"))
	return rig.Must(strconv.Atoi(strings.TrimSpace(string(b))))
}

func ip(ctx context.Context, args ...string) {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		panic(fmt.Errorf("ip %s, which needs root: %w: %s", strings.Join(args, " "), err, out))
	}
}
