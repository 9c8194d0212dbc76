package pebble

import "context"

// QueueBodies calls fn with every message of the queue of a name that is there
// when it begins and has not been acknowledged since, dead ones included, in no
// order. Memory is 8 bytes a message.
func (s *Store) QueueBodies(ctx context.Context, name string, fn func(body []byte) error) error {
	q := s.queues.get(name)
	q.mu.Lock()
	seqs := make([]uint64, 0, len(q.index.slots))
	for i := range q.index.slots {
		if m := &q.index.slots[i]; m.seq != 0 {
			seqs = append(seqs, m.seq)
		}
	}
	q.mu.Unlock()
	n := -1
	for _, seq := range seqs {
		if err := sometimes(ctx, &n); err != nil {
			return err
		}
		body, err := q.body(seq)
		if err != nil {
			return err
		}
		if body == nil {
			continue // acknowledged meanwhile
		}
		if err := fn(body); err != nil {
			return err
		}
	}
	return nil
}
