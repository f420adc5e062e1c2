package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/gateway/config"
)

func TestBucketsAreParsed(t *testing.T) {
	for text, want := range map[string]struct {
		bucket   config.Bucket
		warnings int
	}{
		"s3://lab": {config.Bucket{Name: "lab", Endpoint: "s3.amazonaws.com"}, 0},
		"s3://lab/?region=eu-west-1": {
			config.Bucket{Name: "lab", Endpoint: "s3.eu-west-1.amazonaws.com", Region: "eu-west-1"}, 0,
		},
		"s3://lab-files/gateways/one/?endpoint=https://minio.example.org:9000/&region=lab": {
			config.Bucket{Name: "lab-files", Prefix: "gateways/one", Endpoint: "minio.example.org:9000", Region: "lab"}, 0,
		},
		"s3://lab/x?endpoint=minio.example.org": {config.Bucket{Name: "lab", Prefix: "x", Endpoint: "minio.example.org"}, 0},
		"s3://lab?endpoint=http://127.0.0.1:7070": {
			config.Bucket{Name: "lab", Endpoint: "127.0.0.1:7070", Plaintext: true}, 0,
		},
		"s3://lab?endpoint=http%3A%2F%2Flocalhost%3A7070": {
			config.Bucket{Name: "lab", Endpoint: "localhost:7070", Plaintext: true}, 0,
		},
		"s3://lab?endpoint=[::1]:7070":             {config.Bucket{Name: "lab", Endpoint: "[::1]:7070", Plaintext: true}, 0},
		"s3://lab?endpoint=https://127.0.0.1:7070": {config.Bucket{Name: "lab", Endpoint: "127.0.0.1:7070"}, 0},
		"s3://lab?endpoint=http://minio:9000&insecure=true": {
			config.Bucket{Name: "lab", Endpoint: "minio:9000", Plaintext: true}, 1,
		},
		"s3://lab?endpoint=minio:9000&insecure=true": {config.Bucket{Name: "lab", Endpoint: "minio:9000", Plaintext: true}, 1},
	} {
		file := "files: {url: \"" + text + "\"}\nmodels: [{id: m, checkpoint: c, backends: [{url: \"http://127.0.0.1:8001\"}]}]\n"
		c, err := config.Parse("config.yaml", []byte(file), noVariables)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, ok := c.Files.Bucket()
		if diff := cmp.Diff(want.bucket, got); diff != "" || !ok {
			t.Errorf("%s: (-want +got):\n%s", text, diff)
		}
		if len(c.Warnings) != want.warnings || want.warnings > 0 && !strings.Contains(c.Warnings[0].Error(), "without TLS") {
			t.Errorf("%s: got warnings %v, want %d", text, c.Warnings, want.warnings)
		}
	}
	if _, ok := config.Default().Files.Bucket(); ok {
		t.Error("the default is a bucket")
	}
}
