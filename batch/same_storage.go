package batch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"basegate/batch/storage"
	"basegate/database"
)

// ErrStorageMismatch is returned by Start if the storage is not that of the other gateways on the database.
var ErrStorageMismatch = errors.New("the storage of files is not that of the other gateways: all of them need the same bucket, or the " +
	"same folder (on a network file system)")

// storageID is what the row of an object has in place of a file by which gateways recognize that they share their storage.
const storageID = "storage"

// checkStorage returns ErrStorageMismatch if the object of storageID is not in the storage. The first gateway writes it. If no other
// gateway takes batches, the storage may have been replaced on purpose, and gets a new object. Nothing uses the storage before it
// was found to be the right one.
func (s *Service) checkStorage(ctx context.Context) error {
	if !s.leases.joined || s.sameStorage.Load() {
		return nil
	}
	s.checking.Lock()
	defer s.checking.Unlock()
	for !s.sameStorage.Load() {
		known, err := partsOf(ctx, s.db.Read(), objectsOfFile, storageID)
		missing := ""
		if err == nil && len(known) > 0 {
			missing = known[0].object
			err = s.readFirst(ctx, missing)
			s.sameStorage.Store(err == nil)
		}
		if err == nil && missing == "" || errors.Is(err, storage.ErrNotFound) {
			err = s.identifyStorage(ctx, missing)
		}
		if err != nil {
			return fmt.Errorf("check the storage of files: %w", err)
		}
	}
	return nil
}

// readFirst reads the first byte of an object.
func (s *Service) readFirst(ctx context.Context, object string) error {
	content, err := s.store.Open(ctx, object, 0, 1)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.ReadFull(content, make([]byte, 1))
	return err
}

// identifyStorage writes the object of storageID, unless another gateway has just written one in the place of the missing one.
func (s *Service) identifyStorage(ctx context.Context, missing string) error {
	p := partOf(&File{ID: storageID}, []byte("The gateways recognize by this file that they share their storage.\n"))
	identified := false // by another gateway
	err := s.putUnchecked(ctx, p)
	if err == nil {
		err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
			current, err := partsOf(ctx, tx, objectsOfFile, storageID)
			if identified = len(current) > 0 && current[0].object != missing; err != nil || identified {
				return err
			}
			runners, err := aliveRunners(ctx, tx)
			if err != nil {
				return err
			}
			if missing != "" && len(runners) > 0 {
				return ErrStorageMismatch
			}
			if err := markDeleted(ctx, tx, objectNamed, missing); err != nil {
				return err
			}
			return keepObject(ctx, tx, p.object)
		})
	}
	if err != nil || identified {
		s.discard(ctx, p)
	} else if missing != "" {
		s.log.Warn("the storage of files is not the one that gateways have used before; files that were not copied cannot be read")
	}
	return err
}
