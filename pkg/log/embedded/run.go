package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// Run measures the log, probes the volume and stores the end offset of each partition, until ctx
// ends. In PageCache mode it also starts to write new bytes to the disk every 100 ms.
func (b *Broker) Run(ctx context.Context) error {
	var probe syncer
	if b.cfg.Dir != "" {
		f, err := os.OpenFile(filepath.Join(b.cfg.Dir, "fsync.probe"), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			b.guard.fail(err)
			return fmt.Errorf("embedded log: %w", err)
		}
		defer f.Close()
		probe = f
		var noting sync.WaitGroup
		noting.Go(func() { writeEndsEvery(ctx, b) })
		defer noting.Wait()
	}
	smooth := newSmoother(b.cfg)
	defer smooth.close()
	paced := time.NewTicker(100 * time.Millisecond)
	defer paced.Stop()
	if smooth == nil {
		paced.Stop()
	}
	measured := time.NewTicker(b.cfg.Measure)
	defer measured.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-paced.C:
			smooth.flush()
		case <-measured.C:
			if err := b.measure(); err != nil && !b.guard.measureFailed(err) {
				b.cfg.Logger.Warn("the size of the log cannot be measured now; the last measured size stays in use", "err", err)
			}
			smooth.findSegments()
			b.watch.endOldSpans()
			if probe != nil {
				b.guard.probe(probe)
			}
		}
	}
}

// syncer is a file on the log's volume.
type syncer interface {
	WriteAt(p []byte, off int64) (int, error)
	Sync() error
}

// probe writes and fsyncs a file in the folder of the log. This is needed because the broker ignores
// the errors of its own fsyncs.
func (g *Guard) probe(f syncer) {
	start := time.Now()
	_, err := f.WriteAt([]byte(start.Format("15:04:05.000000")), 0)
	if err == nil {
		err = f.Sync()
	}
	g.slowest.Store(int64(time.Since(start)))
	if err != nil {
		g.writeFailed(fmt.Errorf("fsync probe: %w", err))
	}
}

// measure determines the size of the log and the free space of the volume, and stores both in the
// guard.
func (b *Broker) measure() error {
	before := b.guard.appended.Load()
	var size int64
	if b.cfg.Dir == "" {
		for topic := range b.cfg.Topics {
			for _, p := range b.cluster.PartitionInfos(topic) {
				size += p.NumBytes
			}
		}
	} else {
		var err error
		if size, err = dirSize(b.cfg.Dir); err != nil {
			return err
		}
		free, err := atomicfile.FreeBytes(b.cfg.Dir)
		if err != nil {
			return fmt.Errorf("embedded log: %w", err)
		}
		b.guard.free.Store(free)
		b.guard.noSpace.Store(false)
	}
	b.guard.size.Store(size)
	b.guard.appended.Add(-before) // the measured size includes these bytes
	return nil
}

func dirSize(dir string) (int64, error) {
	var size int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed by a trim meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("embedded log: measuring the size of the log: %w", err)
	}
	return size, nil
}

// Trim removes records every Config.TrimEvery until ctx ends. The function safe returns, for each
// topic and partition, the offset below which records may be removed, because each record below it
// is sealed in history and has a durable outcome. Partitions that are missing in the result of the
// function are not trimmed. Only the removal of a whole segment frees space.
func (b *Broker) Trim(ctx context.Context, safe func() map[string]map[int32]int64) error {
	tick := time.NewTicker(b.cfg.TrimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := b.TrimOnce(safe()); err != nil {
				b.cfg.Logger.Warn("the log could not be trimmed", "err", err)
			}
		}
	}
}

// TrimOnce removes the records below the given offsets once. The parameter safe has the form and
// the meaning of a result of Trim's function safe. TrimOnce never removes the last record of a
// partition, because after a crash this record shows where the partition ends.
func (b *Broker) TrimOnce(safe map[string]map[int32]int64) error {
	if !b.trimming.TryLock() {
		return nil // HoldTrim is in effect; a later call trims
	}
	defer b.trimming.Unlock()
	var errs []error
	targets := map[place]int64{}
	for topic, ps := range safe {
		for p, to := range ps {
			info := b.cluster.PartitionInfo(topic, p)
			if info == nil {
				errs = append(errs, fmt.Errorf("embedded log: trimming: partition %s/%d does not exist", topic, p))
				continue
			}
			if to = min(to, info.HighWatermark-1); to > info.LogStartOffset {
				targets[place{topic, p}] = to
			}
		}
	}
	if len(targets) == 0 {
		return errors.Join(errs...)
	}
	b.endsMu.Lock()
	defer b.endsMu.Unlock()
	if b.cfg.Dir != "" {
		// Write the new first offsets before the trim. So the next start can distinguish segments that
		// were trimmed from segments that are missing. Trim even if this write fails, because on a full
		// disk the trim frees space.
		errs = append(errs, writeEndsLocked(b, targets))
	}
	for p, to := range targets {
		if err := b.cluster.DeleteRecords(p.topic, p.partition, to); err != nil {
			errs = append(errs, fmt.Errorf("embedded log: trimming %s/%d to offset %d: %w", p.topic, p.partition, to, err))
		}
	}
	return errors.Join(errs...)
}
