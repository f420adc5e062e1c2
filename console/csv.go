package console

import (
	"fmt"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
)

// usageCSV sends usage as a CSV file: of a month in any grouping, or of the last requests that match the query's filter.
func (c *Console) usageCSV(r *request) error {
	by := usage.Grouping(r.query("by"))
	columns, ok := report.ConsoleColumns(by)
	if !ok {
		return errNotFound
	}
	s, err := c.scope(r)
	if err != nil {
		return err
	}
	finish, ok := c.downloads.start(r.account.ID)
	if !ok {
		return errBusy
	}
	defer finish()
	filter := s.filter()
	filter.Reader = r.account.ID
	rows, name := c.usages.Rows(r.ctx(), filter, by), "usage-"+s.Month.ID()+"-by-"+string(by)
	if by == usage.ByRequest && r.query("month") == "" {
		filter, err := c.requestsFilter(r)
		if err != nil {
			return err
		}
		recent, err := c.usages.History(r.ctx(), filter, usage.Recorded, usage.Cursor{})
		if err != nil {
			return err
		}
		rows, name = withoutErrors(recent.Rows), "requests"
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	return c.download(r, "basegate-"+name+".csv", report.Usage{
		Columns: columns,
		Names:   report.Names{Keys: known.lookUp, Emails: known.emails},
		Rows:    rows,
	})
}

// download sends a report as a CSV file. It returns an error that occurs before anything is sent.
func (c *Console) download(r *request, name string, u report.Usage) error {
	header := r.Response().Header()
	header.Set("Content-Type", "text/csv; charset=utf-8")
	header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	if r.Request().ProtoMajor == 1 {
		header.Set("Connection", "close") // net/http does not take back the deadline of the last write
	}
	err := u.WriteCSV(&patientWriter{to: r.Response(), control: http.NewResponseController(r.Response()), patience: c.patience})
	if err != nil && (!r.Response().Committed || r.disconnected()) {
		header.Del("Content-Disposition")
		header.Del("Connection")
		return err
	}
	if err != nil {
		c.log.Warn("send usage", zap.Error(err))
		panic(http.ErrAbortHandler) // so that the client sees that the file is incomplete
	}
	return nil
}

// downloadPatience is how long a client of a download may read nothing.
const downloadPatience = 30 * time.Second

// patientWriter writes a response whose client may take long to read all of it, but not to read some of it.
type patientWriter struct {
	to       io.Writer
	control  *http.ResponseController
	patience time.Duration
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.patience)); err != nil {
		return 0, fmt.Errorf("limit the time to send: %w", err)
	}
	return w.to.Write(p)
}

// maxDownloads limits the downloads of an account at the same time.
const maxDownloads = 4

// downloads counts the downloads of each account.
type downloads struct {
	mu      sync.Mutex
	running map[string]int
}

// start begins a download, unless the account has maxDownloads already.
func (d *downloads) start(account string) (finish func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[account] >= maxDownloads {
		return nil, false
	}
	d.running[account]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running[account]--; d.running[account] == 0 {
			delete(d.running, account)
		}
	}, true
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

// collect returns rows as a slice.
func collect(rows iter.Seq2[usage.Row, error]) (all []usage.Row, err error) {
	for r, err := range rows {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}
