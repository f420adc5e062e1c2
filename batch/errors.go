package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"basegate/batch/storage"
	"basegate/database"
	apierr "basegate/errors"
)

// The errors of a validation may quote the file, so they are kept in the storage and not in a row.

// storeErrors writes errors to an object.
func (s *Service) storeErrors(ctx context.Context, errs []LineError) (*newPart, error) {
	text, err := json.Marshal(errs)
	if err != nil {
		return nil, fmt.Errorf("encode the errors of a batch: %w", err)
	}
	p := partOf(&File{}, text)
	if err := s.put(ctx, p); err != nil {
		s.discard(ctx, p)
		return nil, fmt.Errorf("store the errors of a batch: %w", err)
	}
	return p, nil
}

// readErrors returns the errors of a batch; none if it has none or they have been deleted.
func (s *Service) readErrors(ctx context.Context, b *Batch) (errs []LineError, err error) {
	if b.errorsObject == "" {
		return nil, nil
	}
	const most = 1 << 20 // bytes
	content, err := s.store.Open(ctx, b.errorsObject, 0, most)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the errors of a batch: %w", err)
	}
	defer content.Close()
	if err := json.NewDecoder(content).Decode(&errs); err != nil {
		return nil, fmt.Errorf("read the errors of a batch: %w", err)
	}
	return errs, nil
}

// deleteOldErrors deletes the errors of batches that failed long ago.
func (s *Service) deleteOldErrors(ctx context.Context) error {
	old, err := oldErrors(ctx, s.db.Read(), s.now()-int64(s.settings.Load().Keep.Seconds()))
	if err != nil || len(old) == 0 {
		return err
	}
	return s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		for i := range old {
			if err := setErrors(ctx, tx, old[i].seq, ""); err != nil {
				return err
			}
			if err := deleteObject(ctx, tx, old[i].errorsObject); err != nil {
				return err
			}
		}
		return nil
	})
}

// isNotFound reports whether an error is that there is no such file or batch.
func isNotFound(err error) bool {
	e, ok := errors.AsType[*apierr.Error](err)
	return ok && e.Code == apierr.NotFound
}
