package batch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"

	"basegate/database"
)

// part is an object that holds the bytes of a file from an offset on. A file of results has one for each lease of its
// batch that has written to it, until the batch ends and the file gets one object.
type part struct {
	start  int64
	object string
	fence  int64
}

// insertWriting inserts the row of an object that this process is about to write.
func (s *Service) insertWriting(ctx context.Context, tx database.Tx, object string) error {
	if err := insertObject(ctx, tx, object, objectWriting); err != nil || s.db.Postgres() == nil {
		return err
	}
	h := holder{}
	if s.cluster != nil {
		h = s.cluster.holder()
	}
	return insertWriter(ctx, tx, object, h)
}

// resultFile is a file that a recorder appends to.
type resultFile struct {
	File

	own      part // of the recorder's lease; its object is empty before the first append
	recorded bool // own has a row
}

// appendTo appends results to a file, behind the bytes that count.
func (r *recorder) appendTo(ctx context.Context, f *resultFile, data []byte) error {
	s := r.service
	if s.cluster == nil {
		return s.store.Append(ctx, f.object, f.Bytes, data) //nolint:wrapcheck // it says what failed
	}
	if f.own.object == "" {
		// Nobody else ever writes this object, neither an earlier holder of a lease that is late, nor a later one.
		p := part{f.Bytes, newObjectName() + "-" + strconv.FormatInt(r.lease.fence, 16), r.lease.fence}
		err := s.writeLeased(ctx, r.batch.seq, r.lease, func(ctx context.Context, tx database.Tx) error {
			return s.insertWriting(ctx, tx, p.object)
		})
		if err != nil {
			return fmt.Errorf("create an object for results: %w", err)
		}
		f.own = p
	}
	return s.store.Append(ctx, f.own.object, f.Bytes-f.own.start, data) //nolint:wrapcheck // it says what failed
}

// addFirstPart makes the object of a file its first part: the batch was begun by a gateway that was alone, before the database
// was copied.
func (r *recorder) addFirstPart(ctx context.Context, f *File) error {
	err := r.service.writeLeased(ctx, r.batch.seq, r.lease, func(ctx context.Context, tx database.Tx) error {
		if f.Bytes > 0 {
			if err := insertPart(ctx, tx, f.ID, part{object: f.object}); err != nil {
				return err
			}
		} else if err := markDeleted(ctx, tx, f.object); err != nil {
			return err
		}
		return setFileObject(ctx, tx, f.ID, "")
	})
	if err != nil {
		return fmt.Errorf("divide a file of results into parts: %w", err)
	}
	f.object = ""
	return nil
}

// recordPart makes the object that this lease has begun a part of the file.
func (f *resultFile) recordPart(ctx context.Context, tx database.Tx) error {
	if f.own.object == "" || f.recorded {
		return nil
	}
	if err := keepObject(ctx, tx, f.own.object); err != nil {
		return err
	}
	return insertPart(ctx, tx, f.ID, f.own)
}

// finish makes one object of a file that does not grow any more, and returns the object and its digest. An object that
// another lease has written is copied: its writer may still be late with an append.
func (r *recorder) finish(ctx context.Context, f *resultFile) (object string, digest []byte, err error) {
	s := r.service
	if f.Bytes == 0 {
		return f.object, sha256.New().Sum(nil), nil
	}
	object = f.object
	if object == "" {
		if object = f.own.object; f.own.start > 0 || !f.recorded {
			object = ""
		}
	}
	if object == "" {
		return r.copyParts(ctx, f)
	}
	if err := s.store.Finish(ctx, object, f.Bytes); err != nil {
		return "", nil, err //nolint:wrapcheck // it says what failed
	}
	sum := sha256.New()
	err = s.readFile(ctx, &f.File, func(piece []byte) error { return write(sum, piece) })
	return object, sum.Sum(nil), err
}

// copyParts copies a file to a new object.
func (r *recorder) copyParts(ctx context.Context, f *resultFile) (object string, digest []byte, err error) {
	s := r.service
	object = newObjectName() + "-" + strconv.FormatInt(r.lease.fence, 16)
	err = s.writeLeased(ctx, r.batch.seq, r.lease, func(ctx context.Context, tx database.Tx) error {
		return s.insertWriting(ctx, tx, object)
	})
	if err != nil {
		return "", nil, fmt.Errorf("create an object for a file of results: %w", err)
	}
	defer func() {
		if err != nil {
			s.discard(ctx, object)
		}
	}()
	sum, offset := sha256.New(), int64(0)
	err = s.readFile(ctx, &f.File, func(piece []byte) error {
		if err := s.store.Append(ctx, object, offset, piece); err != nil {
			return err //nolint:wrapcheck // it says what failed
		}
		offset += int64(len(piece))
		return write(sum, piece)
	})
	if err != nil {
		return "", nil, err
	}
	if err := s.store.Finish(ctx, object, f.Bytes); err != nil {
		return "", nil, err //nolint:wrapcheck // it says what failed
	}
	return object, sum.Sum(nil), nil
}

func write(sum hash.Hash, piece []byte) error {
	sum.Write(piece) // never fails
	return nil
}

// readFile calls a function with the pieces of a file's content.
func (s *Service) readFile(ctx context.Context, f *File, each func(piece []byte) error) error {
	content, err := s.openFile(ctx, f)
	if err != nil {
		return fmt.Errorf("open a file of results: %w", err)
	}
	defer content.Close()
	buffer := appendBuffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer appendBuffers.Put(buffer)
	for {
		n, err := io.ReadFull(content, *buffer)
		if n > 0 {
			if err := each((*buffer)[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && content.offset == content.file.Bytes:
			return nil
		case err != nil:
			return fmt.Errorf("read a file of results: %w", err)
		}
	}
}
