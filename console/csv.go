package console

import (
	"cmp"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
)

// requestsCSV sends the newest requests that the filter of their page selects as a CSV file, without those that were refused
// unless these are selected.
func (c *Console) requestsCSV(r *request) error {
	filter, err := c.requestsFilter(r)
	if err != nil {
		return err
	}
	ending := cmp.Or(usage.Ending(r.query("ending")), usage.Recorded)
	newest, err := c.Usage.History(r.ctx(), filter, ending, usage.Cursor{})
	if err != nil {
		return err
	}
	u := report.Usage{Columns: report.RequestColumns, Names: c.names(r).Names, Rows: withoutErrors(newest.Rows)}
	return c.sendFile(r, "basegate-requests.csv", mediaCSV, func(w http.ResponseWriter) error { return u.WriteCSV(w) })
}

const mediaCSV = "text/csv; charset=utf-8"

// sendFile sends a file that write writes. It returns an error that occurs before anything is sent.
func (c *Console) sendFile(r *request, name, mediaType string, write func(http.ResponseWriter) error) error {
	running := c.downloadsOf(r.account.ID)
	defer running.Add(-1)
	if running.Add(1) > maxDownloads {
		return errBusy
	}
	header := r.Response().Header()
	header.Set("Content-Type", mediaType)
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	if r.Request().ProtoMajor == 1 {
		header.Set("Connection", "close") // net/http does not take back the deadline of the last write
	}
	err := write(&patientResponse{r.Response(), http.NewResponseController(r.Response()), c.patience})
	if err != nil && (!r.Response().Committed || r.disconnected()) {
		header.Del("Content-Disposition")
		header.Del("Connection")
		return err
	}
	if err != nil {
		c.Log.Warn("send file", zap.Error(err))
		panic(http.ErrAbortHandler) // so that the client sees that the file is incomplete
	}
	return nil
}

// downloadPatience is how long a client of a download may read nothing.
const downloadPatience = 30 * time.Second

// patientResponse is a response whose client may take long to read all of it, but not to read some of it.
type patientResponse struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

// Write implements io.Writer.
func (w *patientResponse) Write(p []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.patience)); err != nil {
		return 0, fmt.Errorf("limit the time to send: %w", err)
	}
	return w.ResponseWriter.Write(p)
}

// maxDownloads limits the downloads of an account at the same time.
const maxDownloads = 4

// downloadsOf returns the number of downloads of an account that run.
func (c *Console) downloadsOf(account string) *atomic.Int32 {
	running, _ := c.downloads.LoadOrStore(account, new(atomic.Int32))
	return running.(*atomic.Int32)
}

func withoutErrors(rows []usage.Row) iter.Seq2[usage.Row, error] {
	return func(yield func(usage.Row, error) bool) {
		for _, r := range rows {
			if !yield(r, nil) {
				return
			}
		}
	}
}
