package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"basegate/gateway/config"
	"basegate/internal/wait"
)

const (
	requestTimeout = time.Minute // of one write, list or deletion with its retries
	requestRetries = 3
	conflictPause  = 50 * time.Millisecond
)

// S3 keeps objects in a bucket: the key of each is PREFIX/NAME.
type S3 struct {
	bucket      config.Bucket
	prefix      string // of all keys
	client      *minio.Core
	transport   *http.Transport
	credentials *credentials.Credentials
}

// OpenS3 returns the store in a bucket. It sends nothing. The caller must close it. Credentials are those that the AWS tools find
// too: the environment, the file of shared credentials, and the role of the machine or container.
func OpenS3(b config.Bucket) (*S3, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 90 * time.Second,
		MaxIdleConns: 256, MaxIdleConnsPerHost: 256,
		DisableCompression: true, // bytes must arrive as they were sent
	}
	creds := credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
	})
	client, err := minio.NewCore(b.Endpoint, &minio.Options{
		Creds: creds, Secure: !b.Plaintext, Region: b.Region, Transport: transport, MaxRetries: requestRetries,
	})
	if err != nil {
		return nil, fmt.Errorf("open the bucket of files: %w", err)
	}
	s := &S3{bucket: b, client: client, transport: transport, credentials: creds}
	if b.Prefix != "" {
		s.prefix = b.Prefix + "/"
	}
	return s, nil
}

// Close implements Store.
func (s *S3) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

var errName = errors.New("not a name of an object")

// key returns the key of an object.
func (s *S3) key(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, `/\`) || strings.Trim(name, ".") == "" {
		return "", errName
	}
	return s.prefix + name, nil
}

// Put implements Store. The server flushes as it likes.
func (s *S3) Put(ctx context.Context, name string, data []byte, _ bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key, err := s.key(name)
	for try := 1; err == nil; try++ {
		_, failed := s.client.Client.PutObject(ctx, s.bucket.Name, key, bytes.NewReader(data), int64(len(data)),
			minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
		if failed == nil {
			return nil
		}
		if failed = explain(failed); try == requestRetries || !isConflict(failed) || !wait.For(ctx, conflictPause) {
			err = failed
		}
	}
	return fmt.Errorf("write an object: %w", err)
}

// Open implements Store.
func (s *S3) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	key, err := s.key(name)
	if err != nil {
		return nil, err
	}
	options := minio.GetObjectOptions{}
	if err := options.SetRange(offset, offset+length-1); err != nil {
		return nil, fmt.Errorf("open an object: %w", err)
	}
	body, info, _, err := s.client.GetObject(ctx, s.bucket.Name, key, options)
	switch {
	case isMissing(err):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("open an object: %w", explain(err))
	case info.Size > length:
		body.Close()
		return nil, errRange
	}
	return body, nil
}

var errRange = errors.New("the S3 server has not returned the requested range")

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key, err := s.key(name)
	if err == nil {
		err = explain(s.client.RemoveObject(ctx, s.bucket.Name, key, minio.RemoveObjectOptions{}))
	}
	if err != nil {
		return fmt.Errorf("delete an object: %w", err)
	}
	return nil
}

// List implements Store.
func (s *S3) List(ctx context.Context, found func(name string, size int64) error) error {
	for o := range s.client.ListObjectsIter(ctx, s.bucket.Name, minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}) {
		if o.Err != nil {
			return fmt.Errorf("list objects: %w", explain(o.Err))
		}
		if err := found(strings.TrimPrefix(o.Key, s.prefix), o.Size); err != nil {
			return err
		}
	}
	return explain(ctx.Err())
}
