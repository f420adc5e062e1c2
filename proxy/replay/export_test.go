package replay

import (
	"context"

	"basegate/batch/storage"
)

// Attach gives the store its storage, without the sweeps of Start.
func Attach(s *Store, objects storage.Objects) { s.objects = objects }

// Sweep deletes what is to be deleted at the moment.
func Sweep(ctx context.Context, s *Store) error { return s.sweepOnce(ctx) }
