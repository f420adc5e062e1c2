package breaker_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"basegate/breaker"
)

// TestEveryRecordedErrorHasItsClass classifies every error that real servers were recorded to send, plain or in a stream.
func TestEveryRecordedErrorHasItsClass(t *testing.T) {
	archives, err := filepath.Glob("../mockvllm/testdata/recorded-*.txtar")
	if err != nil || len(archives) < 4 {
		t.Fatalf("got the archives %v, error %v", archives, err)
	}
	var got strings.Builder
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		server := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "recorded-"), ".txtar")
		for _, file := range archive.Files {
			name, ok := strings.CutSuffix(file.Name, ".http")
			if !ok || len(file.Data) == 0 {
				continue
			}
			if status, body := recordedError(t, string(file.Data)); status != 0 {
				o := breaker.Classify(status, []byte(body))
				fmt.Fprintf(&got, "%s/%s %d: %s\n", server, name, status, o.Class)
			}
		}
	}
	golden(t, "testdata/recorded.golden", got.String())
}

// recordedError returns the status and the body of an error, or those of the error event within a stream. The status is 0
// if there is neither.
func recordedError(t *testing.T, raw string) (status int, body string) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
	if err != nil {
		t.Fatal(err)
	}
	content, _ := io.ReadAll(response.Body) // some were cut off
	if response.StatusCode >= http.StatusBadRequest {
		return response.StatusCode, string(content)
	}
	if _, event, found := strings.Cut(string(content), `data: {"error"`); found {
		event, _, _ = strings.Cut(event, "\n")
		return response.StatusCode, `{"error"` + event
	}
	return 0, ""
}
