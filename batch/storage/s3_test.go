package storage_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/gateway/config"
	"basegate/internal/loopback"
	"basegate/internal/s3test"
)

func settingsOf(server *s3test.Server) config.Bucket {
	return config.Bucket{
		Endpoint: server.Address, Name: s3test.Bucket, Prefix: "lab/files", Region: s3test.Region, Plaintext: true,
	}
}

func openS3(t *testing.T, server *s3test.Server) *storage.S3 {
	t.Helper()
	s3test.Setenv(t)
	return openSettings(t, settingsOf(server))
}

func openSettings(t *testing.T, settings config.Bucket) *storage.S3 {
	t.Helper()
	s, err := storage.OpenS3(settings)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestCheckOfABucketLeavesNothing(t *testing.T) {
	server := s3test.Start(t)
	s3test.Setenv(t)
	for _, region := range []string{s3test.Region, ""} {
		settings := settingsOf(server)
		settings.Region = region
		warnings, err := openSettings(t, settings).Check(t.Context())
		if err != nil || len(warnings) > 0 {
			t.Errorf("region %q: got %v, warnings %q", region, err, warnings)
		}
	}
	if keys := server.Keys(""); len(keys) > 0 {
		t.Errorf("the check left %q", keys)
	}
}

func TestCheckSaysWhatIsWrongWithABucket(t *testing.T) {
	server := s3test.Start(t)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	secure.StartTLS()
	defer secure.Close()
	for name, test := range map[string]struct {
		change func(t *testing.T, s *config.Bucket)
		want   string
		passes bool // by itself
	}{
		"bucket": {func(_ *testing.T, s *config.Bucket) { s.Name = "missing" }, "the bucket does not exist: create it", false},
		"key": {func(t *testing.T, _ *config.Bucket) {
			t.Helper()
			t.Setenv("AWS_ACCESS_KEY_ID", "unknown")
		}, "correct AWS_ACCESS_KEY_ID", false},
		"secret": {func(t *testing.T, _ *config.Bucket) {
			t.Helper()
			t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
		}, "correct AWS_SECRET_ACCESS_KEY", false},
		"region":      {func(_ *testing.T, s *config.Bucket) { s.Region = "us-west-2" }, "correct region in files.url", false},
		"unreachable": {func(_ *testing.T, s *config.Bucket) { s.Endpoint = loopback.Address(t) }, "cannot be reached", true},
		"certificate": {func(_ *testing.T, s *config.Bucket) {
			s.Endpoint, s.Plaintext = secure.Listener.Addr().String(), false
		}, "certificate is not trusted", false},
		"no TLS": {func(_ *testing.T, s *config.Bucket) { s.Plaintext = false }, "does not speak TLS", false},
	} {
		t.Run(name, func(t *testing.T) {
			s3test.Setenv(t)
			settings := settingsOf(server)
			test.change(t, &settings)
			_, err := openSettings(t, settings).Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if _, lasting := errors.AsType[*storage.BucketError](err); lasting == test.passes {
				t.Errorf("%v: lasting %v, want %v", err, lasting, !test.passes)
			}
		})
	}
}

func TestCheckRefusesABucketThatKeepsDeletedBytes(t *testing.T) {
	server := s3test.Start(t, "--versioning-dir", t.TempDir())
	must(t, server.Client.EnableVersioning(t.Context(), s3test.Bucket))
	s := openS3(t, server)
	if _, err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "keeps versions") {
		t.Errorf("got %v", err)
	}
	must(t, server.Client.SuspendVersioning(t.Context(), s3test.Bucket))
	if _, err := s.Check(t.Context()); err != nil {
		t.Errorf("with versioning suspended: %v", err)
	}
	must(t, server.Client.MakeBucket(t.Context(), "locked", minio.MakeBucketOptions{ObjectLocking: true}))
	settings := settingsOf(server)
	settings.Name = "locked"
	if _, err := openSettings(t, settings).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "object lock") {
		t.Errorf("got %v", err)
	}
}

// fakeError is a server that responds to every request with an error of S3, which quotes the key as real ones may.
func fakeError(t *testing.T, status int, code string) config.Bucket {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>about %s</Message><Key>%s</Key></Error>", code, r.URL.Path, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	return config.Bucket{Endpoint: strings.TrimPrefix(server.URL, "http://"), Name: "files", Region: "r", Plaintext: true}
}

func TestErrorsSayWhatToDoWithoutTheNameOfTheObject(t *testing.T) {
	s3test.Setenv(t)
	const name = "secretname"
	for code, want := range map[string]string{
		"RequestTimeTooSkewed": "synchronize", "AccessDenied": "s3:PutObject", "ExpiredToken": "AWS_SESSION_TOKEN",
		"PermanentRedirect": "region and endpoint", "Unheard": "responded 400 Unheard",
	} {
		s := openSettings(t, fakeError(t, http.StatusBadRequest, code))
		_, opened := s.Open(t.Context(), name, 0, 1)
		for _, err := range []error{s.Put(t.Context(), name, []byte("x"), true), opened, s.Delete(t.Context(), name)} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), name) {
				t.Errorf("%s: got %v, want %q without the name", code, err, want)
			}
		}
	}
	full := openSettings(t, fakeError(t, http.StatusInsufficientStorage, "XMinioStorageFull"))
	if err := full.Put(t.Context(), name, []byte("x"), true); !storage.IsFull(err) {
		t.Errorf("got %v, want an error that IsFull knows", err)
	}
	unreachable := openSettings(t, config.Bucket{Endpoint: "127.0.0.1:1", Name: "files", Region: "r", Plaintext: true})
	if err := unreachable.Put(t.Context(), name, []byte("x"), true); err == nil || strings.Contains(err.Error(), name) {
		t.Errorf("got %v, want an error without the name", err)
	}
}

// faultyServer forwards to a server, and lets a test change what happens to requests.
func faultyServer(t *testing.T, server *s3test.Server, handle func(w http.ResponseWriter, r *http.Request, forward http.Handler)) config.Bucket {
	t.Helper()
	forward := &httputil.ReverseProxy{
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server.Address})
			r.Out.Host = r.In.Host
		},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, forward) }))
	t.Cleanup(front.Close)
	settings := settingsOf(server)
	settings.Endpoint = strings.TrimPrefix(front.URL, "http://")
	return settings
}

func TestPutSurvivesAConflict(t *testing.T) {
	server := s3test.Start(t)
	s3test.Setenv(t)
	var writes atomic.Int32
	settings := faultyServer(t, server, func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		if r.Method == http.MethodPut && writes.Add(1) < 3 {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `<Error><Code>OperationAborted</Code><Message>a conflicting operation is in progress</Message></Error>`)
			return
		}
		forward.ServeHTTP(w, r)
	})
	s := openSettings(t, settings)
	must(t, s.Put(t.Context(), "a", []byte("text"), true))
	wantContent(t, s, "a", 0, 4, "text")
	if writes.Load() != 3 {
		t.Errorf("%d writes, want two that fail and one that succeeds", writes.Load())
	}
}

// The documents describe how to move a folder to a bucket: the names of the files are the keys.
func TestFilesOfAFolderCanBeCopiedToABucket(t *testing.T) {
	server := s3test.Start(t)
	s := openS3(t, server)
	const content = "one\ntwo\n"
	_, err := server.Client.Client.PutObject(t.Context(), s3test.Bucket, "lab/files/a", strings.NewReader(content), 8, minio.PutObjectOptions{})
	must(t, err)
	wantContent(t, s, "a", 0, 8, content)
}

// The lines of a batch are small ranges of one file: each is one request.
func TestRangesOfAnObjectNeedOneRequestEach(t *testing.T) {
	server := s3test.Start(t)
	s3test.Setenv(t)
	var requests atomic.Int32
	settings := faultyServer(t, server, func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		requests.Add(1)
		forward.ServeHTTP(w, r)
	})
	s := openSettings(t, settings)
	must(t, s.Put(t.Context(), "a", []byte("one\ntwo\nten\n"), true))
	requests.Store(0)
	for i := range 10 {
		wantContent(t, s, "a", int64(i%3*4), 3, []string{"one", "two", "ten"}[i%3])
	}
	if n := requests.Load(); n != 10 {
		t.Errorf("10 reads made %d requests, want 10", n)
	}
}
