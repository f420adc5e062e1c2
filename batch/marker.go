package batch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"basegate/database"
	"basegate/storage"
)

// ErrOtherStorage is returned by Start if the storage is not that of the other gateways on the database.
var ErrOtherStorage = errors.New("the storage of files is not that of the other gateways: all of them need the same bucket, or the " +
	"same folder (on a network file system)")

// checkStorage returns ErrOtherStorage if the object that the gateways share is not in the storage. The first gateway makes
// it. If no other gateway runs, the storage may have been replaced on purpose: a new object is made.
func (s *Service) checkStorage(ctx context.Context) error {
	for {
		object, err := storageMarker(ctx, s.db.Read())
		if err != nil {
			return fmt.Errorf("check the storage of files: %w", err)
		}
		if object != "" {
			found, err := s.hasMarker(ctx, object)
			if err != nil {
				return fmt.Errorf("check the storage of files: %w", err)
			}
			if found {
				return nil
			}
		}
		made, err := s.makeMarker(ctx, object)
		if err != nil || made {
			return err
		}
	}
}

func (s *Service) hasMarker(ctx context.Context, object string) (bool, error) {
	content, err := s.store.Open(ctx, object, 0, int64(len(markerText)))
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
func (s *Service) makeMarker(ctx context.Context, missing string) (made bool, err error) {
	object := newObjectName()
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error { return s.insertWriting(ctx, tx, object) })
	if err == nil {
		err = s.store.Append(ctx, object, 0, []byte(markerText))
	}
	if err != nil {
		return false, fmt.Errorf("mark the storage of files: %w", err)
	}
	others := 0
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
