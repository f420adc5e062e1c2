package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

var (
	errNoCredentials = &BucketError{"NoCredentials", "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
		"or give the machine or container a role"}
	errVersioned = &BucketError{"Versioning", "the bucket keeps versions, so the bytes of deleted files would stay: use a bucket without versioning, " +
		"or suspend it and delete the old versions"}
	errLocked = &BucketError{"ObjectLock", "the bucket has object lock, so deleted files would stay: use a bucket without it"}
)

// Check tries what the store needs: credentials, and to list, write, read and delete under the prefix of a bucket that
// forgets what is deleted. The error is a *BucketError if it does not pass by itself. Warnings are about what could not be
// checked.
func (s *S3) Check(ctx context.Context) (warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := s.credentials.GetWithContext(&credentials.CredContext{Client: &http.Client{Transport: s.transport}, Context: ctx})
	if err != nil || found.AccessKeyID == "" {
		return nil, errNoCredentials
	}
	for o := range s.client.ListObjectsIter(ctx, s.bucket.Name, minio.ListObjectsOptions{Prefix: s.prefix + "check-", MaxKeys: 1}) {
		if o.Err != nil {
			return nil, explain(o.Err)
		}
		break
	}
	if warnings, err = s.checkVersions(ctx); err != nil {
		return warnings, err
	}
	return warnings, s.tryObject(ctx)
}

// checkVersions checks that deleted objects are gone.
func (s *S3) checkVersions(ctx context.Context) (warnings []string, err error) {
	lock, _, _, _, err := s.client.GetObjectLockConfig(ctx, s.bucket.Name)
	if err == nil && lock == "Enabled" { // an error says that there is none, or that it is not known; a lock needs versions
		return nil, errLocked
	}
	versions, err := s.client.GetBucketVersioning(ctx, s.bucket.Name)
	switch refused := explain(err); {
	case err == nil && versions.Enabled():
		return nil, errVersioned
	case err == nil || isUnsupported(err):
		return nil, nil
	default:
		if b, ok := errors.AsType[*BucketError](refused); ok && b.Code != "AccessDenied" {
			return nil, refused
		}
		return []string{"it is not known whether the bucket keeps versions of deleted files: allow s3:GetBucketVersioning"}, nil
	}
}

// isUnsupported reports whether the server does not have what was requested.
func isUnsupported(err error) bool {
	r, ok := errors.AsType[minio.ErrorResponse](err)
	return ok && (r.Code == "NotImplemented" || strings.HasPrefix(r.Code, "VersioningNotConfigured") || r.StatusCode == http.StatusNotImplemented)
}

// tryObject writes, reads and deletes an object.
func (s *S3) tryObject(ctx context.Context) error {
	name := "check-" + strings.ToLower(rand.Text())
	content := []byte(name)
	if err := s.Put(ctx, name, content, true); err != nil {
		return err
	}
	var read []byte
	r, err := s.Open(ctx, name, 0, int64(len(content)))
	if err == nil {
		defer r.Close()
		read, err = io.ReadAll(io.LimitReader(r, int64(len(content))))
	}
	if err == nil && !bytes.Equal(read, content) {
		err = errRange
	}
	if err := errors.Join(err, s.Delete(ctx, name)); err != nil {
		return fmt.Errorf("try an object: %w", err)
	}
	return nil
}
