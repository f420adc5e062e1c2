package gateway

import (
	"context"
	"io"
	"net/http"
	"time"

	"basegate/batch"
	"basegate/console"
)

// consoleBatches are files and batches as the console uses them.
type consoleBatches struct{ service *batch.Service }

// Limits implements console.BatchService.
func (b consoleBatches) Limits() console.BatchLimits {
	s := b.service.Limits()
	return console.BatchLimits{
		MaxFileBytes: s.MaxFileBytes, MaxAccountBytes: s.MaxAccountBytes, Windows: batch.Windows(), Endpoints: b.service.Endpoints(),
	}
}

// Files implements console.BatchService.
func (b consoleBatches) Files(ctx context.Context, account, after string, limit int) ([]console.StoredFile, bool, error) {
	all, more, err := b.service.FilesOf(ctx, account, after, limit)
	files := make([]console.StoredFile, len(all))
	for i := range all {
		files[i] = storedFile(&all[i])
	}
	return files, more, err
}

func storedFile(f *batch.AccountFile) console.StoredFile {
	return console.StoredFile{
		ID: f.ID, Name: f.Filename, Key: f.Key, Input: f.Purpose == batch.Input, Bytes: f.Bytes, Lines: f.Lines,
		CreatedAt: time.Unix(f.CreatedAt, 0), ExpiresAt: f.Expires(), Batch: f.Batch, InUse: f.Batch != "" && !f.BatchEnded,
	}
}

// File implements console.BatchService.
func (b consoleBatches) File(ctx context.Context, account, id string) (console.StoredFile, error) {
	f, err := b.service.FileOf(ctx, account, id)
	if err != nil {
		return console.StoredFile{}, err
	}
	return storedFile(f), nil
}

// StoredBytes implements console.BatchService.
func (b consoleBatches) StoredBytes(ctx context.Context, account string) (int64, error) {
	return b.service.StoredBytes(ctx, account)
}

// StoreFile implements console.BatchService.
func (b consoleBatches) StoreFile(ctx context.Context, f console.NewFile, from io.Reader) (console.StoredFile, []console.LineProblem, error) {
	upload := batch.Upload{Account: f.Account, Key: f.Key, Name: f.Name, Endpoint: f.Endpoint}
	stored, lines, errs, err := b.service.StoreChecked(ctx, upload, from)
	if err != nil || len(errs) > 0 {
		return console.StoredFile{}, lineProblems(errs), err
	}
	return storedFile(&batch.AccountFile{FileDetails: *stored, Lines: int64(lines)}), nil, nil
}

func lineProblems(errs []batch.LineError) []console.LineProblem {
	all := make([]console.LineProblem, len(errs))
	for i, e := range errs {
		all[i] = console.LineProblem{Line: orZero(e.Line), Code: e.Code, Param: orZero(e.Param), Message: e.Message}
	}
	return all
}

// orZero returns the value, or the zero value for nil.
func orZero[T any](v *T) (value T) {
	if v != nil {
		value = *v
	}
	return value
}

// ServeFile implements console.BatchService.
func (b consoleBatches) ServeFile(w http.ResponseWriter, r *http.Request, account, id string) error {
	return b.service.ServeContent(&batch.Call{Response: w, Request: r, Account: account, Param: func(string) string { return id }})
}

// DeleteFile implements console.BatchService.
func (b consoleBatches) DeleteFile(ctx context.Context, account, id string) error {
	return b.service.DeleteOf(ctx, account, id)
}

// Batches implements console.BatchService.
func (b consoleBatches) Batches(ctx context.Context, account, after string, limit int) ([]console.Batch, bool, error) {
	all, more, err := b.service.BatchesOf(ctx, account, after, limit)
	return consoleBatchesOf(all), more, err
}

func consoleBatchesOf(all []batch.Details) []console.Batch {
	batches := make([]console.Batch, len(all))
	for i := range all {
		batches[i] = consoleBatch(&all[i])
	}
	return batches
}

func consoleBatch(d *batch.Details) console.Batch {
	b := console.Batch{
		ID: d.ID, Account: d.Account, Key: d.Key, Status: string(d.Status), Endpoint: d.Endpoint, Window: d.Window,
		Model: orZero(d.Model), InputFile: d.InputFile, OutputFile: orZero(d.OutputFile), ErrorFile: orZero(d.ErrorFile),
		CreatedAt: time.Unix(d.CreatedAt, 0), StartedAt: unixTime(d.InProgressAt), ExpiresAt: time.Unix(d.ExpiresAt, 0),
		Total: d.Counts.Total, Completed: d.Counts.Completed, Failed: d.Counts.Failed,
		PromptTokens: d.Usage.InputTokens, CachedTokens: d.Usage.InputDetails.Cached, CompletionTokens: d.Usage.OutputTokens,
	}
	for _, at := range []*int64{d.CompletedAt, d.FailedAt, d.ExpiredAt, d.CancelledAt} {
		if at != nil {
			b.EndedAt = unixTime(at)
		}
	}
	if d.WaitingFor != nil {
		b.WaitingFor, b.ResetsAt = string(d.WaitingFor.Reason), unixTime(d.WaitingFor.ResetsAt)
	}
	if d.Errors != nil {
		b.Problems = lineProblems(d.Errors.Data)
	}
	return b
}

// unixTime returns the time of seconds since 1970; zero for nil.
func unixTime(seconds *int64) time.Time {
	if seconds == nil {
		return time.Time{}
	}
	return time.Unix(*seconds, 0)
}

// UnfinishedBatches implements console.BatchService.
func (b consoleBatches) UnfinishedBatches(ctx context.Context, account string) ([]console.Batch, error) {
	all, err := b.service.UnfinishedOf(ctx, account)
	return consoleBatchesOf(all), err
}

// Batch implements console.BatchService.
func (b consoleBatches) Batch(ctx context.Context, account, id string) (console.Batch, error) {
	d, err := b.service.BatchOf(ctx, account, id)
	if err != nil {
		return console.Batch{}, err
	}
	return consoleBatch(d), nil
}

// FailedLines implements console.BatchService.
func (b consoleBatches) FailedLines(ctx context.Context, account, id string, limit int) ([]console.LineProblem, error) {
	failed, err := b.service.FailedLines(ctx, account, id, limit)
	all := make([]console.LineProblem, len(failed))
	for i, l := range failed {
		all[i] = console.LineProblem{CustomID: l.CustomID, Status: l.Status, RequestID: l.RequestID, Code: l.Code, Message: l.Message}
	}
	return all, err
}

// CreateBatch implements console.BatchService.
func (b consoleBatches) CreateBatch(ctx context.Context, n console.NewBatch) (string, error) {
	return b.service.CreateOf(ctx, batch.Order{
		Account: n.Account, Key: n.Key, InputFile: n.File, Endpoint: n.Endpoint, Window: n.Window, Once: n.Once,
	})
}

// CancelBatch implements console.BatchService.
func (b consoleBatches) CancelBatch(ctx context.Context, account, id string) error {
	return b.service.CancelOf(ctx, account, id)
}
