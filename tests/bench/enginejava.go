package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// This file runs Kafka's own tools, from the same jar files as the broker.

// tool runs the main class of a Java program and returns its output.
func (k *kafkaBench) tool(ctx context.Context, class string, args ...string) string {
	all := append([]string{"-Xms512m", "-Xmx512m", "-cp", k.jars, class}, args...) // the heap size that kafka-*-perf-test.sh sets
	cmd := exec.CommandContext(ctx, k.java, all...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		panic(fmt.Errorf("%s: %w: %.500s", class, err, problems.String()))
	}
	return out.String()
}

// perfProducer runs kafka-producer-perf-test with the settings of our producer. The tool takes a
// number of records and no duration, so the method run computes the number from the expected rate
// in the field guess.
type perfProducer struct {
	k     *kafkaBench
	size  int     // bytes per record
	guess float64 // expected records per second: the rate of the last run
}

var sent = regexp.MustCompile(`records sent, ([0-9.]+) records/sec`)

// run sends records for about d and returns records per second. A Java program is slow in its first
// seconds, so the rate of the whole run would be too low. The tool also reports a rate every five
// seconds; run returns the highest rate.
func (p *perfProducer) run(ctx context.Context, d time.Duration) float64 {
	topic, remove := p.k.topic(ctx)
	defer remove()
	n := max(int(p.guess*d.Seconds()), 1000)
	p.guess = sentRate(p.k.tool(ctx, "org.apache.kafka.tools.ProducerPerformance",
		"--topic", topic, "--num-records", strconv.Itoa(n), "--record-size", strconv.Itoa(p.size), "--throughput", "-1", "--producer-props",
		"bootstrap.servers="+strings.Join(p.k.conn.Brokers, ","), "acks=all", "enable.idempotence=true", "compression.type=none",
		"linger.ms="+strconv.FormatInt(lingerTime.Milliseconds(), 10), "batch.size="+strconv.Itoa(batchBytes),
		"max.request.size="+strconv.Itoa(8<<20), "buffer.memory="+strconv.Itoa(128<<20)))
	return p.guess
}

// sentRate returns the highest rate that kafka-producer-perf-test printed, in records per second.
func sentRate(out string) (best float64) {
	for _, m := range sent.FindAllStringSubmatch(out, -1) {
		best = max(best, rig.Must(strconv.ParseFloat(m[1], 64)))
	}
	if best == 0 {
		panic(fmt.Errorf("the output of kafka-producer-perf-test has no rate: %.300q", out))
	}
	return best
}

// perfConsumer reads n records with kafka-consumer-perf-test in a new consumer group. It returns
// the value fetch.nMsg.sec of the tool: records per second, without the time of the rebalance.
func (k *kafkaBench) perfConsumer(ctx context.Context, topic string, n int64) float64 {
	return fetchRate(k.tool(ctx, "org.apache.kafka.tools.ConsumerPerformance",
		"--bootstrap-server", strings.Join(k.conn.Brokers, ","), "--topic", topic, "--messages", strconv.FormatInt(n, 10),
		"--fetch-size", strconv.Itoa(4<<20), "--hide-header", "--timeout", "60000"), n)
}

// fetchRate returns the rate in the last line that kafka-consumer-perf-test printed. It panics if
// the line cannot be read or counts fewer than n records.
func fetchRate(out string, n int64) float64 {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	fields := strings.Split(lines[len(lines)-1], ",")
	if len(fields) == 10 {
		read, err1 := strconv.ParseInt(strings.TrimSpace(fields[4]), 10, 64)
		rate, err2 := strconv.ParseFloat(strings.TrimSpace(fields[9]), 64)
		if err1 == nil && err2 == nil && read >= n {
			return rate
		}
	}
	panic(fmt.Errorf("the output of kafka-consumer-perf-test has no rate, or counts fewer than %d records: %.300q", n, out))
}
