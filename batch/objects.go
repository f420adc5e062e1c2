package batch

import (
	"context"
	"io"

	"basegate/database"
	apierr "basegate/errors"
)

// The methods below keep objects of other packages, such as the documents of saved prompts, in the storage of files. What a
// crash or a deletion leaves of them is swept like that of files.

// WriteObject stores data as an object, and calls keep with its name in the transaction with which it counts. After an error
// the object is deleted.
func (s *Service) WriteObject(ctx context.Context, data []byte, keep func(context.Context, database.Tx, string) error) error {
	p := partOf(&File{}, data)
	err := s.put(ctx, p)
	if err != nil {
		err = apierr.Storage(err)
	} else {
		err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
			if err := keepObject(ctx, tx, p.object); err != nil {
				return err
			}
			return keep(ctx, tx, p.object)
		})
	}
	if err != nil {
		s.discard(ctx, p)
	}
	return err
}

// OpenObject returns a reader of an object. The caller must close it.
func (s *Service) OpenObject(ctx context.Context, name string, size int64) (io.ReadCloser, error) {
	return s.openParts(ctx, []part{{name, 0, size}}, size)
}

// DeleteObject marks an object in a transaction; it is deleted after that.
func (*Service) DeleteObject(ctx context.Context, tx database.Tx, name string) error {
	return markDeleted(ctx, tx, objectNamed, name)
}
