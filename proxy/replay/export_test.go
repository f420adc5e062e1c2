package replay

import "context"

// Sweep deletes what is to be deleted at the moment.
func Sweep(ctx context.Context, s *Store) error { return s.sweepOnce(ctx) }
