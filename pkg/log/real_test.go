package log

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
)

// ownKafka has brokers that only one test uses, so that it can stop and kill them.
type ownKafka struct {
	t       testing.TB
	dir     string
	env     []string
	brokers []string
	nodes   int
}

// startKafka starts one broker or three through scripts/engines/kafka.sh, on free ports, and stops
// them at the end. If no engines are provisioned, the test is skipped.
func startKafka(t testing.TB, nodes int, env ...string) *ownKafka {
	t.Helper()
	enginetest.Server(t, enginetest.KafkaEnv)
	k := &ownKafka{t: t, dir: t.TempDir(), nodes: nodes}
	port, err := freeport.Find(100*(nodes-1) + 2) // broker i has port + 100 i, its controller the one behind it
	if err != nil {
		t.Fatal(err)
	}
	k.env = append(env, "NOTIFY_ENGINES_DIR="+k.dir, "NOTIFY_KAFKA_PORT="+strconv.Itoa(port),
		"NOTIFY_KAFKA_CONTROLLER_PORT="+strconv.Itoa(port+1), "NODES="+strconv.Itoa(nodes))
	for i := range nodes {
		k.brokers = append(k.brokers, fmt.Sprintf("127.0.0.1:%d", port+100*i))
	}
	t.Cleanup(func() { k.script("stop") })
	k.script("start")
	return k
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
