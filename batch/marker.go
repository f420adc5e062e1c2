package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/database"
)

// ErrOtherStorage is returned by Start if the storage is not that of the other gateways on the database.
var ErrOtherStorage = errors.New("the storage of files is not that of the other gateways: all of them need the same bucket, or the " +
	"same folder (on a network file system)")

// checkedStore is the storage of a gateway among several. If it was away when the gateway started, nothing uses it before
// it has been checked.
type checkedStore struct {
	storage.Store
	check   func(context.Context) error
	mu      sync.Mutex // held during a check
	checked atomic.Bool
}

// errUnchecked is returned while the check fails: uploads and downloads get 503, and batches wait.
var errUnchecked = errors.New("the storage of files could not be checked yet")

// verify checks the storage unless it was found to be the right one before.
func (c *checkedStore) verify(ctx context.Context) error {
	if c.checked.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checked.Load() {
		return nil
	}
	if err := c.check(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnchecked, err)
	}
	c.checked.Store(true)
	return nil
}

// Append implements storage.Store.
func (c *checkedStore) Append(ctx context.Context, name string, offset int64, data []byte) error {
	if err := c.verify(ctx); err != nil {
		return err
	}
	return c.Store.Append(ctx, name, offset, data) //nolint:wrapcheck // it says what failed
}

// Open implements storage.Store.
func (c *checkedStore) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := c.verify(ctx); err != nil {
		return nil, err
	}
	return c.Store.Open(ctx, name, offset, length) //nolint:wrapcheck // it says what failed
}

// Finish implements storage.Store.
func (c *checkedStore) Finish(ctx context.Context, name string, size int64) error {
	if err := c.verify(ctx); err != nil {
		return err
	}
	return c.Store.Finish(ctx, name, size) //nolint:wrapcheck // it says what failed
}

// Delete implements storage.Store.
func (c *checkedStore) Delete(ctx context.Context, name string) error {
	if err := c.verify(ctx); err != nil {
		return err
	}
	return c.Store.Delete(ctx, name) //nolint:wrapcheck // it says what failed
}

// storageChecked returns an error unless the storage of a gateway among several is the right one. Before that, the gateway
// takes no batches.
func (s *Service) storageChecked(ctx context.Context) error {
	if c, shared := s.store.(*checkedStore); shared {
		return c.verify(ctx)
	}
	return nil
}

// startStorage checks the storage. If it is away, it is checked again before its first use.
func (s *Service) startStorage(ctx context.Context) error {
	store := s.store
	c := &checkedStore{Store: store, check: func(ctx context.Context) error { return s.checkStorage(ctx, store) }}
	err := c.verify(ctx)
	switch {
	case errors.Is(err, ErrOtherStorage):
		return ErrOtherStorage
	case ctx.Err() != nil:
		return err
	case err != nil:
		s.log.Error("the storage of files cannot be used at the moment: uploads and downloads get 503, and batches wait", zap.Error(err))
	}
	s.store = c
	return nil
}

// checkStorage returns ErrOtherStorage if the object that the gateways share is not in the storage. The first gateway makes
// it. If no other gateway runs, the storage may have been replaced on purpose: a new object is made.
func (s *Service) checkStorage(ctx context.Context, store storage.Store) error {
	for {
		object, err := storageMarker(ctx, s.db.Read())
		if err != nil {
			return fmt.Errorf("check the storage of files: %w", err)
		}
		if object != "" {
			found, err := hasMarker(ctx, store, object)
			if err != nil {
				return fmt.Errorf("check the storage of files: %w", err)
			}
			if found {
				return nil
			}
		}
		made, err := s.makeMarker(ctx, store, object)
		if err != nil || made {
			return err
		}
	}
}

func hasMarker(ctx context.Context, store storage.Store, object string) (bool, error) {
	content, err := store.Open(ctx, object, 0, int64(len(markerText)))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err //nolint:wrapcheck // by the caller
	}
	defer content.Close()
	text := make([]byte, len(markerText))
	_, err = io.ReadFull(content, text)
	return err == nil && string(text) == markerText, err //nolint:wrapcheck // by the caller
}

// markerText is the content of the object that the gateways share.
const markerText = "The gateways recognize by this file that they share their storage.\n"

// makeMarker makes the object, unless another gateway has just made one in the place of the missing one.
func (s *Service) makeMarker(ctx context.Context, store storage.Store, missing string) (bool, error) {
	object := newObjectName()
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error { return s.insertWriting(ctx, tx, object) })
	if err == nil {
		err = store.Append(ctx, object, 0, []byte(markerText))
	}
	if err != nil {
		return false, fmt.Errorf("mark the storage of files: %w", err)
	}
	made, others := false, 0
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
		current, err := storageMarker(ctx, tx)
		if err != nil {
			return err
		}
		if others, err = countRunners(ctx, tx); err != nil {
			return err
		}
		if made = current == missing && (missing == "" || others == 0); !made {
			return nil
		}
		if err := keepObject(ctx, tx, object); err != nil {
			return err
		}
		return setStorageMarker(ctx, tx, object)
	})
	switch {
	case err != nil:
		s.discard(ctx, object)
		return false, fmt.Errorf("mark the storage of files: %w", err)
	case made && missing != "":
		s.log.Warn("the storage of files is not the one that gateways have used before; files that were not copied cannot be read")
	case !made:
		s.discard(ctx, object)
		if others > 0 && missing != "" {
			return false, ErrOtherStorage
		}
	}
	return made, nil
}
