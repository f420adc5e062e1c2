package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/gateway/config"
)

// filesTimeout limits how long an S3 server that does not respond delays the start.
const filesTimeout = 10 * time.Second

// openFiles returns the storage of the files. The caller must close it.
func openFiles(c *config.Config) (storage.Store, error) {
	if b, ok := c.Files.Bucket(); ok {
		return storage.OpenS3(b)
	}
	if !keepsFiles(c) {
		return storage.None{}, nil
	}
	return storage.OpenDisk(filesFolder(c))
}

// OpenFiles returns the storage of the files for a command, which makes no folder for them.
func OpenFiles(c *config.Config) (storage.Store, error) {
	if folder := filesFolder(c); folder != "" {
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			return storage.None{}, nil
		}
	}
	return openFiles(c)
}

// keepsFiles reports whether files and batches are served: beside a PostgreSQL database there is no folder for them.
func keepsFiles(c *config.Config) bool { return c.Files.URL != nil || !c.Database.Postgres() }

// objects returns the storage of saved prompts, which is that of the files; nil if there is none.
func (g *Gateway) objects() storage.Objects {
	if !keepsFiles(g.booted) {
		return nil
	}
	return g.batches
}

// filesFolder returns the folder of the files; empty if they are in a bucket, or nowhere.
func filesFolder(c *config.Config) string {
	switch u := c.Files.URL; {
	case !keepsFiles(c):
		return ""
	case u == nil:
		return c.Database.Path + ".files"
	case u.Scheme == "file":
		return u.Path
	}
	return ""
}

// CheckFiles tries the bucket of the files, and reports whether they are in one.
func CheckFiles(ctx context.Context, c *config.Config) (location string, warnings []string, err error) {
	b, ok := c.Files.Bucket()
	if !ok {
		return "", nil, nil
	}
	location = fmt.Sprintf("s3://%s/%s at %s", b.Name, b.Prefix, b.Endpoint)
	files, err := storage.OpenS3(b)
	if err != nil {
		return location, nil, err
	}
	warnings, err = files.Check(ctx)
	return location, warnings, errors.Join(err, files.Close())
}

// checkFiles tries the bucket of the files at the start. A failure that does not pass by itself is an error; while the
// server cannot be reached, live requests are served all the same.
func (g *Gateway) checkFiles(ctx context.Context, c *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, filesTimeout)
	defer cancel()
	location, warnings, err := CheckFiles(ctx, c)
	for _, w := range warnings {
		g.log.Warn("the bucket of files: "+w, zap.String("bucket", location))
	}
	if _, lasting := errors.AsType[*storage.BucketError](err); lasting {
		return fmt.Errorf("files.url: %s: %w", location, err)
	}
	if err != nil {
		g.log.Error("the bucket of files cannot be used at the moment: uploads and downloads get 503, and batches wait",
			zap.String("bucket", location), zap.Error(err))
	}
	return nil
}
