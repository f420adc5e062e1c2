package batch

import (
	"context"
	"io"

	"basegate/database"
	apierr "basegate/errors"
)

// The methods below implement storage.Objects. What a crash or a deletion leaves of the objects is swept like that of files.

// WriteObject implements storage.Objects. After an error the object is deleted.
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

// RecordObject implements storage.Objects.
func (*Service) RecordObject(ctx context.Context, tx database.Tx, size int64) (name string, err error) {
	p := &newPart{part: part{newObjectName(), 0, size}, file: &File{}}
	return p.object, insertObject(ctx, tx, p, "kept", holder{}, 0)
}

// PutObject implements storage.Objects.
func (s *Service) PutObject(ctx context.Context, name string, data []byte) error {
	err := s.checkStorage(ctx)
	if err == nil {
		err = s.store.Put(ctx, name, data, false)
	}
	if err != nil {
		return apierr.Storage(err)
	}
	return nil
}

// ReadObject implements storage.Objects.
func (s *Service) ReadObject(ctx context.Context, name string, size int64) ([]byte, error) {
	content, err := s.openParts(ctx, []part{{name, 0, size}}, size)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data := make([]byte, size)
	_, err = io.ReadFull(content, data)
	return data, err
}

// DeleteObject implements storage.Objects.
func (*Service) DeleteObject(ctx context.Context, tx database.Tx, name string) error {
	return markDeleted(ctx, tx, objectNamed, name)
}
