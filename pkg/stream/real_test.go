package stream

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
)

// ownKafka are brokers that one test alone has, to stop and kill.
type ownKafka struct {
	t       testing.TB
	dir     string
	env     []string
	brokers []string
	nodes   int
}

// startKafka starts one broker or three through scripts/engines/kafka.sh, on ports
// nobody listens at, and stops them at the end. Where no engines are provisioned
// the test is skipped.
func startKafka(t testing.TB, nodes int, env ...string) *ownKafka {
	t.Helper()
	enginetest.Server(t, enginetest.KafkaEnv)
	k := &ownKafka{t: t, dir: t.TempDir(), nodes: nodes}
	port := freePorts(t, nodes)
	k.env = append(env, "NOTIFY_ENGINES_DIR="+k.dir, "NOTIFY_KAFKA_PORT="+strconv.Itoa(port),
		"NOTIFY_KAFKA_CONTROLLER_PORT="+strconv.Itoa(port+1), "NODES="+strconv.Itoa(nodes))
	for i := range nodes {
		k.brokers = append(k.brokers, fmt.Sprintf("127.0.0.1:%d", port+100*i))
	}
	t.Cleanup(func() { k.script("stop") })
	k.script("start")
	return k
}

// freePorts returns p such that p + 100 i and the one behind it are free, below
// those that outgoing connections take.
func freePorts(t testing.TB, nodes int) int {
	t.Helper()
	for range 1000 {
		p := 20_000 + 2*rand.IntN(5000)
		free := true
		for i := range 2 * nodes {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p+100*(i/2)+i%2))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return p
		}
	}
	t.Fatal("no free ports")
	return 0
}

func (k *ownKafka) script(command string) {
	k.t.Helper()
	cmd := exec.Command("../../scripts/engines/kafka.sh", command)
	cmd.Env = append(os.Environ(), k.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		k.t.Fatalf("kafka.sh %s: %v\n%s", command, err, out.String())
	}
}

// signal sends s to a broker, numbered from 1.
func (k *ownKafka) signal(node int, s syscall.Signal) {
	k.t.Helper()
	dir := filepath.Join(k.dir, "kafka")
	if k.nodes > 1 {
		dir = filepath.Join(k.dir, "kafka3", strconv.Itoa(node))
	}
	b, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		k.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		k.t.Fatal(err)
	}
	if err := syscall.Kill(pid, s); err != nil {
		k.t.Fatal(err)
	}
}
