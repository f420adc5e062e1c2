package storage

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/minio/minio-go/v7"
)

// Lister lists the objects of a Store. All stores of this package implement it.
type Lister interface {
	// List calls found with the name and the size of each object, in any order. Objects that appear or are deleted meanwhile
	// may be missing or not.
	List(ctx context.Context, found func(name string, size int64) error) error
}

// List implements Lister.
func (d *Disk) List(ctx context.Context, found func(name string, size int64) error) error {
	err := fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // deleted meanwhile
		}
		return found(name, info.Size())
	})
	if err != nil {
		return fmt.Errorf("list objects: %w", withoutName(err))
	}
	return nil
}

// List implements Lister.
func (None) List(context.Context, func(string, int64) error) error { return nil }

// List implements Lister. Keys come in their order, so the segments of an object are together.
func (s *S3) List(ctx context.Context, found func(name string, size int64) error) error {
	prefix := s.key("")
	var name string
	var segments []segment
	report := func() error {
		if name == "" {
			return nil
		}
		l := newLayout(segments)
		return found(name, l.end())
	}
	for o := range s.client.ListObjectsIter(ctx, s.settings.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return explain(o.Err)
		}
		object, key, _ := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		part, ok := parseSegment(key)
		if !ok || part.length != o.Size {
			continue
		}
		if object != name {
			if err := report(); err != nil {
				return err
			}
			name, segments = object, segments[:0]
		}
		segments = append(segments, part)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	return report()
}
