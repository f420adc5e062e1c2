package console

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/batch"
	apierr "basegate/errors"
	"basegate/internal/bodyrate"
)

// What the storage or the database fails with is also what a slow or broken upload fails with.
func TestFailureOfTheStorageIsNotTheUploads(t *testing.T) {
	c := &Console{Deps: Deps{Log: zap.NewNop(), Batches: batch.New(nil, nil, nil, batch.Settings{}, zap.NewNop())}}
	r := &request{Context: echo.New().NewContext(httptest.NewRequest(http.MethodPost, "/files", nil), httptest.NewRecorder()), body: &requestBody{Reader: new(bodyrate.Reader)}}
	for _, cause := range []error{os.ErrDeadlineExceeded, io.ErrUnexpectedEOF} {
		if err := c.batchProblem(r, fmt.Errorf("store: %w", apierr.Storage(cause))); !errors.Is(err, apiProblems[apierr.StorageUnavailable]) {
			t.Errorf("%v of the storage: got %v, want %v", cause, err, apiProblems[apierr.StorageUnavailable])
		}
		if err := c.batchProblem(r, cause); !errors.Is(err, errUploadSlow) && !errors.Is(err, errUploadCut) {
			t.Errorf("%v of the upload: got %v", cause, err)
		}
	}
}
