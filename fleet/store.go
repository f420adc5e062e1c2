package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// store is what the fleet keeps in the database: how long boots took, the windows that are booked, and what the operator
// has ordered by a command, which is another process.
type store struct {
	db      *database.DB
	writing context.Context //nolint:containedctx // of what is written beside whoever caused it; set by Start
}

// bootsKept is how many boots of a backend the median is of.
const bootsKept = 9

// boots are what the last boots of one backend took.
type boots struct {
	mu   sync.Mutex
	took []time.Duration // the latest last
	keep func(time.Duration)
}

func (b *boots) add(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.took = append(b.took, took); len(b.took) > bootsKept {
		b.took = b.took[1:]
	}
}

// median is 0 while none was measured.
func (b *boots) median() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(b.took))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// bootsOf finds what is known of a backend's boots; f.mu is held, or nobody else has the fleet yet.
func (f *Fleet) bootsOf(model, backend string) *boots {
	key := model + "/" + backend
	if f.measured[key] == nil {
		b := &boots{}
		b.keep = func(took time.Duration) {
			if f.store != nil {
				f.store.addBoot(model, backend, time.Now(), took)
			}
		}
		f.measured[key] = b
	}
	return f.measured[key]
}

// booted notes what a launch took. A wake is another matter, and much quicker.
func (b *Backend) booted(took time.Duration) {
	b.log.Info("backend has started", zap.Duration("took", took), zap.Bool("woken", b.life.boot.wake))
	if b.life.boot.wake && b.policy().Launch != nil {
		return
	}
	b.boots.add(took)
	b.boots.keep(took)
}

// addBoot is written when the database gets to it; one that is lost is only an estimate that is older.
func (s *store) addBoot(model, backend string, at time.Time, took time.Duration) {
	s.db.Submit(func(tx database.Tx) error {
		_, err := tx.ExecContext(s.writing,
			`INSERT INTO boots (model, backend, ended_at, took_us) VALUES ($1, $2, $3, $4)`, model, backend, at.UnixMicro(), took.Microseconds())
		return err
	})
}

func (f *Fleet) readBoots(ctx context.Context) error {
	const text = `
		SELECT model, backend, took_us FROM (
			SELECT model, backend, took_us, ended_at, row_number() OVER (PARTITION BY model, backend ORDER BY ended_at DESC) AS n
			FROM boots
		) AS latest
		WHERE n <= $1 ORDER BY ended_at`
	rows, err := f.store.db.Read().QueryContext(ctx, text, bootsKept)
	if err != nil {
		return fmt.Errorf("read boots: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			model, backend string
			took           int64
		)
		if err := rows.Scan(&model, &backend, &took); err != nil {
			return fmt.Errorf("read boots: %w", err)
		}
		f.bootsOf(model, backend).add(time.Duration(took) * time.Microsecond)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read boots: %w", err)
	}
	return nil
}

// Command is what an operator can order of a model.
type Command string

// The orders.
const (
	CommandWarm Command = "warm"
	CommandStop Command = "stop"
)

// Enqueue leaves an order for the running gateway, which obeys within a second.
func Enqueue(ctx context.Context, db *database.DB, model string, o Command) error {
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO model_orders (model, order_name, given_at) VALUES ($1, $2, $3)`, model, string(o), time.Now().UnixMicro())
		return err
	})
	if err != nil {
		return fmt.Errorf("give order: %w", err)
	}
	return nil
}

// Windows lists the booked windows that are not over, the earliest first.
func Windows(ctx context.Context, db *database.DB) ([]BookedWindow, error) {
	const text = `SELECT id, model, begins_at, ends_at FROM model_windows WHERE ends_at > $1 ORDER BY begins_at, id`
	rows, err := db.Read().QueryContext(ctx, text, time.Now().UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("read windows: %w", err)
	}
	defer rows.Close()
	all := []BookedWindow{}
	for rows.Next() {
		var (
			b        BookedWindow
			from, to int64
		)
		if err := rows.Scan(&b.ID, &b.Model, &from, &to); err != nil {
			return nil, fmt.Errorf("read windows: %w", err)
		}
		b.From, b.To = time.UnixMicro(from).UTC(), time.UnixMicro(to).UTC()
		all = append(all, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read windows: %w", err)
	}
	return all, nil
}

// What can be wrong with a booking.
var (
	ErrEmptyWindow = errors.New("a window must end after it begins, and in the future")
	ErrNoWindow    = errors.New("no such window")
)

// AddWindow books a window, and returns it with its id.
func AddWindow(ctx context.Context, db *database.DB, b BookedWindow) (BookedWindow, error) {
	if !b.To.After(b.From) || !b.To.After(time.Now()) {
		return b, ErrEmptyWindow
	}
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		const text = `INSERT INTO model_windows (model, begins_at, ends_at) VALUES ($1, $2, $3) RETURNING id`
		return tx.QueryRowContext(ctx, text, b.Model, b.From.UnixMicro(), b.To.UnixMicro()).Scan(&b.ID)
	})
	if err != nil {
		return b, fmt.Errorf("book window: %w", err)
	}
	return b, nil
}

// RemoveWindow removes a booked window.
func RemoveWindow(ctx context.Context, db *database.DB, id int64) error {
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM model_windows WHERE id = $1`, id)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(ErrNoWindow, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove window: %w", err)
	}
	return nil
}

// order is one that was given and not yet obeyed.
type order struct {
	id    int64
	model string
	what  Command
	given time.Time
}

// orderLasts is how long an order waits for a gateway to run: nobody expects one of yesterday to be obeyed.
const orderLasts = time.Minute

// obey reads the booked windows, and does what has been ordered, each order once. What cannot be read now is read at the
// next beat.
func (f *Fleet) obey(ctx context.Context) {
	booked, err := Windows(ctx, f.store.db)
	if err != nil {
		f.log.Debug("read windows", zap.Error(err))
		return
	}
	f.booked.Store(&booked)
	orders, err := f.store.orders(ctx)
	if err != nil || len(orders) == 0 {
		return
	}
	for _, o := range orders {
		if err := f.do(o); err != nil {
			f.log.Warn("an order cannot be obeyed", zap.String("model", o.model), zap.String("order", string(o.what)), zap.Error(err))
		}
	}
	last := orders[len(orders)-1].id
	err = f.store.db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM model_orders WHERE id <= $1`, last)
		return err
	})
	if err != nil {
		f.log.Warn("an order that was obeyed stays on the list", zap.Error(err))
	}
}

func (s *store) orders(ctx context.Context) ([]order, error) {
	rows, err := s.db.Read().QueryContext(ctx, `SELECT id, model, order_name, given_at FROM model_orders ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	defer rows.Close()
	var all []order
	for rows.Next() {
		var (
			o     order
			given int64
		)
		if err := rows.Scan(&o.id, &o.model, &o.what, &given); err != nil {
			return nil, fmt.Errorf("read orders: %w", err)
		}
		o.given = time.UnixMicro(given)
		all = append(all, o)
	}
	return all, rows.Err() //nolint:wrapcheck // read again at the next beat
}

var (
	errNoModel = errors.New("there is no such model any more")
	errStale   = errors.New("it was given when no gateway ran")
)

func (f *Fleet) do(o order) error {
	m, ok := f.Model(o.model)
	switch {
	case !ok:
		return errNoModel
	case time.Since(o.given) > orderLasts:
		return errStale
	}
	if o.what == CommandStop {
		return m.Stop("the operator stops it")
	}
	return m.Warm("the operator warms it")
}
