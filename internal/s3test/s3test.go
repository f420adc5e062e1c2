// Package s3test provides tests with an S3 server: the Versity S3 gateway on a folder, which `make versitygw` builds. It
// is imported by tests only.
package s3test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"basegate/internal/loopback"
	"basegate/internal/poll"
)

// The settings of every Server.
const (
	AccessKey = "basegate-test"
	SecretKey = "a-secret-of-the-tests"
	Region    = "eu-test-1"
	Bucket    = "files"
)

// Server is an S3 server with an empty bucket.
type Server struct {
	Address string // host:port
	Folder  string // of the bucket's bytes
	Client  *minio.Core

	tb     testing.TB
	binary string
	args   []string
	stop   func()
}

// Start starts a server until the test ends, with further arguments of the posix backend. Without the program the test is
// skipped, or fails if CI is set.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, binary: program(tb), Address: loopback.Address(tb), Folder: tb.TempDir()}
	args = append([]string{
		"--port", s.Address, "--access", AccessKey, "--secret", SecretKey, "--region", Region, "--keep-alive", "--quiet", "posix",
	}, args...)
	s.args = append(args, s.Folder)
	client, err := minio.NewCore(s.Address, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: Region, MaxRetries: 1})
	if err != nil {
		tb.Fatal(err)
	}
	s.Client = client
	s.Restart()
	if err := client.MakeBucket(tb.Context(), Bucket, minio.MakeBucketOptions{}); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Environment are the variables with the credentials of the server.
var Environment = map[string]string{"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_SESSION_TOKEN": ""}

// Setenv sets Environment for the test and the processes that it starts.
func Setenv(t *testing.T) {
	t.Helper()
	for name, value := range Environment {
		t.Setenv(name, value)
	}
}

// URL returns the value of files.url for a prefix of the bucket.
func (s *Server) URL(prefix string) string {
	return "s3://" + Bucket + "/" + prefix + "?endpoint=http://" + s.Address + "&region=" + Region
}

// Stop kills the server. Its bucket remains.
func (s *Server) Stop() { s.stop() }

// Restart starts the server again at its address.
func (s *Server) Restart() {
	s.tb.Helper()
	cmd := exec.Command(s.binary, s.args...) //nolint:noctx // a program of the tests, killed at their end
	if err := cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the error is that of the kill
	})
	s.tb.Cleanup(s.stop)
	poll.Until(s.tb, "the S3 server listens", func() bool {
		conn, err := net.Dial("tcp", s.Address) //nolint:noctx // loopback
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// Keys returns the keys of the bucket that begin with a prefix.
func (s *Server) Keys(prefix string) (keys []string) {
	s.tb.Helper()
	ctx := context.WithoutCancel(s.tb.Context()) // it may be called by a clean-up
	// versitygw fails to list a folder that it removes at the same time, because its last object was deleted.
	poll.Until(s.tb, "the bucket is listed", func() bool {
		keys = nil
		for o := range s.Client.ListObjectsIter(ctx, Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
			if o.Err != nil {
				s.tb.Log(o.Err)
				return false
			}
			keys = append(keys, o.Key)
		}
		return true
	})
	slices.Sort(keys)
	return keys
}

// program returns the path of the server's program: BASEGATE_VERSITYGW, or that of make versitygw.
func program(tb testing.TB) string {
	tb.Helper()
	path := os.Getenv("BASEGATE_VERSITYGW")
	if path == "" {
		root, err := os.Getwd()
		if err != nil {
			tb.Fatal(err)
		}
		for !exists(filepath.Join(root, "go.mod")) && root != "/" {
			root = filepath.Dir(root)
		}
		path = filepath.Join(root, "bin", "versitygw")
	}
	if exists(path) {
		return path
	}
	const missing = "there is no S3 server to test with: make versitygw builds it"
	if os.Getenv("CI") != "" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path) //nolint:gosec // a path of the tests
	return err == nil
}
