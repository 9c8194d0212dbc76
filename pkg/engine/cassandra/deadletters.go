package cassandra

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

type deadLetters struct {
	s   *Store
	log numbered
}

const (
	letterPage = 200
	// letterBatch is the greatest number of rows that one appendRows adds to a log.
	letterBatch = 100

	listLetters    = "dead_letters"
	purgeOfLetters = "dead_letters_by_until"
)

const selectLetter = `SELECT ord, seq, state, job, writer, data FROM dead_letters WHERE id = ?`

// letterRow is a dead letter as it is stored.
type letterRow struct {
	engine.DeadLetter
	writer int64 // the nonce of the last conditional write; 0: the row does not exist
}

func (l deadLetters) read(get func(dest ...any) (bool, error)) (r letterRow, ok bool, err error) {
	var ord, seq int64
	var data []byte
	var state, job string
	ok, err = get(&ord, &seq, &state, &job, &r.writer, &data)
	if err == nil && ok {
		err = store.UnpackLetter(data, &r.DeadLetter)
	}
	if err != nil || !ok {
		return letterRow{}, false, err
	}
	r.Ord, r.Seq, r.State, r.Job = uint64(ord), uint64(seq), state, job // data contains old values of these fields
	return r, true, nil
}

// serial reads one dead letter with the consistency SERIAL, so it sees every swap that returned
// before the call.
func (l deadLetters) serial(ctx context.Context, id []byte) (letterRow, bool, error) {
	return l.read(func(dest ...any) (bool, error) { return l.s.getSerial(ctx, selectLetter, []any{id}, dest...) })
}

// letters reads several dead letters for listings. If a dead letter is missing, its row in the
// result has writer 0.
func (l deadLetters) letters(ctx context.Context, ids [][]byte) ([]letterRow, error) {
	return readEach(ids, func(id []byte) (letterRow, error) {
		r, _, err := l.read(func(dest ...any) (bool, error) { return l.s.get(ctx, selectLetter, []any{id}, dest...) })
		return r, err
	})
}

// Put implements engine.DeadLetters in three steps. First it stores each dead letter
// without numbers. Then it appends the ids of the dead letters to the log of all dead letters
// and to the log of each caller. At the end it stores in each dead letter the numbers that
// its id has in these logs. An interrupted Put may leave invalid rows in the logs. A row of
// a log is valid only if its dead letter contains the number of the row.
func (l deadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	type put struct {
		id  []byte
		in  *engine.DeadLetter
		row letterRow
	}
	seen := map[string]bool{}
	var all []*put
	for i := range ds {
		p := &put{id: store.LetterID(ds[i].ID, ds[i].Epoch), in: &ds[i]}
		if !seen[string(p.id)] {
			seen[string(p.id)] = true
			all = append(all, p)
		}
	}
	err := parallel(len(all), func(i int) (err error) {
		all[i].row, err = l.create(ctx, all[i].id, all[i].in)
		return err
	})
	if err != nil {
		return err
	}
	of := map[string][]*put{}
	var callers []string
	var todo []*put
	for _, p := range all {
		if p.row.Seq != 0 {
			continue
		}
		todo = append(todo, p)
		if of[p.row.Caller] == nil {
			callers = append(callers, p.row.Caller)
		}
		of[p.row.Caller] = append(of[p.row.Caller], p)
	}
	number := func(log numbered, ps []*put, set func(*put, uint64)) error {
		for len(ps) > 0 {
			first, n, err := log.appendRows(ctx, func(_ logRow, room int) ([][]byte, error) {
				var rows [][]byte
				for _, p := range ps[:min(len(ps), room, letterBatch)] {
					rows = append(rows, p.id)
				}
				return rows, nil
			})
			if err != nil {
				return err
			}
			for i, p := range ps[:n] {
				set(p, uint64(first)+uint64(i))
			}
			ps = ps[n:]
		}
		return nil
	}
	if err := number(l.log, todo, func(p *put, n uint64) { p.row.Ord = n }); err != nil {
		return err
	}
	err = parallel(len(callers), func(i int) error {
		return number(l.feed(callers[i]), of[callers[i]], func(p *put, n uint64) { p.row.Seq = n })
	})
	if err != nil {
		return err
	}
	return parallel(len(todo), func(i int) error {
		p := todo[i]
		_, err := l.s.swapVersion(ctx, versionSwap{
			// If another process has stored numbers for the same dead letter, the numbers
			// of that process are valid.
			what: "the numbers of a dead letter", to: int64(p.row.Seq), elseLost: true,
			readBack: stmt{`SELECT seq, writer FROM dead_letters WHERE id = ?`, []any{p.id}},
		}, stmt{`UPDATE dead_letters SET ord = ?, seq = ? WHERE id = ? IF seq = 0`, []any{int64(p.row.Ord), int64(p.row.Seq), p.id}})
		return err
	})
}

func (l deadLetters) feed(caller string) numbered { return logOf(l.s, "feed/"+caller) }

// create stores the entries of a dead letter in the lists, and then the dead letter without
// numbers. It returns the stored dead letter. If the dead letter existed before, create
// stores nothing and returns the existing row.
func (l deadLetters) create(ctx context.Context, id []byte, d *engine.DeadLetter) (letterRow, error) {
	if r, ok, err := l.serial(ctx, id); err != nil || ok {
		return r, err
	}
	data, err := store.PackLetter(d)
	if err != nil {
		return letterRow{}, err
	}
	// The entries are stored first, because a row without entries would never be purged or
	// listed.
	if err := purgeLater(ctx, l.s, purgeOfLetters, purgeEntry{d.Until, id}, 0); err != nil {
		return letterRow{}, err
	}
	if err := addToList(ctx, l.s, 0, letterEntry(d.LastFailed, id)); err != nil {
		return letterRow{}, err
	}
	me := nonce()
	_, err = l.s.swapVersion(ctx, versionSwap{
		what: "a new dead letter", to: me, writer: me, elseLost: true,
		readBack: stmt{`SELECT writer, writer FROM dead_letters WHERE id = ?`, []any{id}},
	}, stmt{
		`INSERT INTO dead_letters (id, ord, seq, state, job, writer, data) VALUES (?, 0, 0, ?, ?, ?, ?) IF NOT EXISTS`,
		[]any{id, d.State, d.Job, me, data},
	})
	if err != nil {
		return letterRow{}, err
	}
	r, ok, err := l.serial(ctx, id)
	if err == nil && !ok {
		err = unknownOutcome("a dead letter that is missing directly after its write")
	}
	return r, err
}

// Get reads with the consistency SERIAL. If the Put of a dead letter is not finished, Get returns
// notify.KindNotFound.
func (l deadLetters) Get(ctx context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	r, ok, err := l.serial(ctx, store.LetterID(id, epoch))
	if err == nil && (!ok || r.Seq == 0) {
		err = notify.NotFound("dead_letter")
	}
	if err != nil {
		return engine.DeadLetter{}, err
	}
	return r.DeadLetter, nil
}

// eachNumbered reads the rows of a log whose numbers are in (after, upTo] and calls fn with
// their dead letters. It stops when fn returns false. numberOf returns a pointer to the
// field of a dead letter that contains its number in the log (Seq or Ord). If the field is
// 0, the Put of the dead letter is not finished, and eachNumbered sets the field to the
// number of the row. If the field has another number, the row of the log was left by an
// interrupted Put, and eachNumbered skips it.
func (l deadLetters) eachNumbered(ctx context.Context, log numbered, after, upTo uint64, max int, numberOf func(*engine.DeadLetter) *uint64, fn func(*engine.DeadLetter) (bool, error)) error {
	for {
		page, err := log.readPage(ctx, after, upTo, min(max, letterPage))
		if err != nil || len(page) == 0 {
			return err
		}
		ids := make([][]byte, len(page))
		for i := range page {
			ids[i] = page[i].data
		}
		rows, err := l.letters(ctx, ids)
		if err != nil {
			return err
		}
		for i := range page {
			d, n := &rows[i].DeadLetter, uint64(page[i].n)
			after = n
			if rows[i].writer == 0 {
				continue // purged
			}
			if number := numberOf(d); *number == 0 {
				*number = n
			} else if *number != n {
				continue
			}
			if more, err := fn(d); err != nil || !more {
				return err
			}
		}
	}
}

func (l deadLetters) Feed(ctx context.Context, caller string, after uint64, max int) (out []engine.DeadLetter, err error) {
	if max <= 0 {
		return nil, nil
	}
	err = l.eachNumbered(ctx, l.feed(caller), after, math.MaxUint64, max, func(d *engine.DeadLetter) *uint64 { return &d.Seq }, func(d *engine.DeadLetter) (bool, error) {
		out = append(out, *d)
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (l deadLetters) Walk(ctx context.Context, after, upTo uint64, fn func(*engine.DeadLetter) error) error {
	return l.eachNumbered(ctx, l.log, after, upTo, letterPage, func(d *engine.DeadLetter) *uint64 { return &d.Ord }, func(d *engine.DeadLetter) (bool, error) {
		return true, fn(d)
	})
}

func (l deadLetters) Last(ctx context.Context) (uint64, error) {
	r, err := l.log.lastRow(ctx)
	return uint64(r.n), err
}

func (l deadLetters) Move(ctx context.Context, ms []engine.LetterMove) ([]bool, error) {
	moved := make([]bool, len(ms))
	seen := map[string]bool{}
	byID := map[string][]int{} // indexes in the parameter ms, by id
	var ids []string
	for i := range ms {
		id := string(store.LetterID(ms[i].ID, ms[i].Epoch))
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
		byID[id] = append(byID[id], i)
	}
	err := parallel(len(ids), func(k int) error {
		// If two moves name the same dead letter, only the first move that matches is
		// applied.
		for _, i := range byID[ids[k]] {
			var err error
			if moved[i], err = l.move(ctx, []byte(ids[k]), &ms[i]); err != nil || moved[i] {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return moved, nil
}

func (l deadLetters) move(ctx context.Context, id []byte, m *engine.LetterMove) (bool, error) {
	me := nonce()
	return l.s.runConditional(ctx, "the move of a dead letter", func() (swapOutcome, error) {
		now, ok, err := l.serial(ctx, id)
		switch {
		case err != nil:
			return 0, err
		case ok && now.writer == me:
			return swapDone, nil
		case ok && now.State == m.From && now.Job == m.FromJob:
			return swapUndone, nil
		case ok && now.State == m.To && now.Job == m.Job:
			return swapUnknown, nil
		}
		return swapLost, nil
	}, stmt{
		`UPDATE dead_letters SET state = ?, job = ?, writer = ? WHERE id = ? IF state = ? AND job = ? AND seq > 0`,
		[]any{m.To, m.Job, me, id, m.From, m.FromJob},
	})
}
