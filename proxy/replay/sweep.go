package replay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

const (
	sweepInterval   = time.Minute
	deletedTogether = 500 // responses in one transaction
)

// sweep deletes what has expired, what deleted accounts have left, and what exceeds the limits.
func (s *Store) sweep(ctx context.Context) {
	if err := s.sweepOnce(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("kept responses cannot be deleted yet", zap.Error(err))
	}
}

func (s *Store) sweepOnce(ctx context.Context) error {
	expired := time.Now().Add(-s.settings.Load().Keep).UnixMicro()
	if err := s.deleteAll(ctx, createdBefore, expired); err != nil {
		return fmt.Errorf("delete expired responses: %w", err)
	}
	uses, err := s.readUse(ctx)
	if err != nil {
		return err
	}
	for _, u := range uses {
		if !u.exists {
			if err := s.deleteAll(ctx, ofAccount, u.account); err != nil {
				return fmt.Errorf("delete the responses of a deleted account: %w", err)
			}
			s.count(u.account, -u.bytes)
		}
	}
	return s.shrink(ctx)
}

// deleteAll deletes all responses that a condition selects, some in each transaction.
func (s *Store) deleteAll(ctx context.Context, condition string, args ...any) error {
	for {
		rows, err := selectRows(ctx, s.db.Read(), condition, args...)
		if err != nil || len(rows) == 0 {
			return err
		}
		err = s.db.WriteGrouped(ctx, func(tx database.Tx) error {
			for i := range rows {
				if err := s.delete(ctx, tx, &rows[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// shrink deletes what exceeds the limits, which a reload may have lowered, or several gateways have exceeded together.
func (s *Store) shrink(ctx context.Context) error {
	for {
		changes := map[string]int64{}
		err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
			clear(changes)
			s.mu.Lock()
			for account := range s.used {
				changes[account] = 0
			}
			s.mu.Unlock()
			return s.evict(ctx, tx, changes)
		})
		if err != nil {
			return fmt.Errorf("delete responses over the limits: %w", err)
		}
		freed := int64(0)
		for account, bytes := range changes {
			s.count(account, bytes)
			freed -= bytes
		}
		if freed == 0 {
			return nil
		}
	}
}

// evict deletes the least recently used responses, of the accounts whose use changes and of all, until the limits hold after the
// changes, to which it adds what it deletes. It deletes at most deletedTogether of each account.
func (s *Store) evict(ctx context.Context, tx database.Tx, changes map[string]int64) error {
	limits := s.settings.Load()
	s.mu.Lock()
	total := s.total
	over := map[string]int64{}
	for account, change := range changes {
		total += change
		if excess := s.used[account] + change - limits.MaxBytesPerAccount; excess > 0 {
			over[account] = excess
		}
	}
	s.mu.Unlock()
	for account, excess := range over {
		freed, err := s.free(ctx, tx, excess, changes, leastUsedOf, account)
		if err != nil {
			return err
		}
		total -= freed
	}
	_, err := s.free(ctx, tx, total-limits.MaxBytes, changes, leastUsed)
	return err
}

// free deletes responses in an order until some bytes are free.
func (s *Store) free(ctx context.Context, tx database.Tx, excess int64, changes map[string]int64, order string, args ...any) (freed int64, err error) {
	if excess <= 0 {
		return 0, nil
	}
	rows, err := selectRows(ctx, tx, order, args...)
	for i := 0; i < len(rows) && freed < excess && err == nil; i++ {
		if err = s.delete(ctx, tx, &rows[i]); err == nil {
			freed += rows[i].bytes
			changes[rows[i].account] -= rows[i].bytes
		}
	}
	return freed, err
}

// readUse reads what each account has kept.
func (s *Store) readUse(ctx context.Context) ([]use, error) {
	uses, err := selectUses(ctx, s.db.Read())
	if err != nil {
		return nil, fmt.Errorf("sum up the kept responses: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used, s.total = map[string]int64{}, 0
	for _, u := range uses {
		s.used[u.account] = u.bytes
		s.total += u.bytes
	}
	return uses, nil
}

// loadUse calls readUse before the first sweep.
func (s *Store) loadUse(ctx context.Context) error {
	s.mu.Lock()
	loaded := s.used != nil
	s.mu.Unlock()
	if loaded {
		return nil
	}
	_, err := s.readUse(ctx)
	return err
}

// count adds a change to the use of an account.
func (s *Store) count(account string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used != nil {
		s.used[account] += bytes
		s.total += bytes
	}
}
