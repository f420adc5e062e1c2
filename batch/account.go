package batch

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"basegate/database"
	apierr "basegate/errors"
)

// The operations of the console. Each sees the files and batches of one account, and its errors are those of the API. They
// need Start, as the API does.

// Endpoints returns the endpoints that a batch may name: that of chat completions only where a model serves it.
func (s *Service) Endpoints() []string {
	if s.settings.Load().Chat {
		return slices.Clone(endpoints)
	}
	return slices.Clone(endpoints[:1])
}

// Limits returns the settings that are in force.
func (s *Service) Limits() Settings { return *s.settings.Load() }

// AccountFile is a file with the batch that has to do with it: the newest one, or one that has not ended.
type AccountFile struct {
	File
	Batch string // its id; empty if there is none
	InUse bool   // the batch has not ended
}

// Input reports whether a batch can be created of the file.
func (f *AccountFile) Input() bool { return f.Purpose == Input }

// FilesOf returns files of an account, the newest first, behind the file with the id after unless that is empty; and
// whether there are more.
func (s *Service) FilesOf(ctx context.Context, account, after string, limit int) (_ []AccountFile, more bool, err error) {
	p := page{account: account, limit: limit}
	if after != "" {
		f, err := s.file(ctx, account, after)
		if err != nil {
			return nil, false, err
		}
		p.after = f.seq
	}
	files, more, err := listFiles(ctx, s.db.Read(), p, "", s.now())
	if err != nil {
		return nil, false, unreadable(err)
	}
	all, err := s.withBatches(ctx, account, files)
	return all, more, err
}

// FileOf returns a file of an account.
func (s *Service) FileOf(ctx context.Context, account, id string) (AccountFile, error) {
	f, err := s.file(ctx, account, id)
	if err != nil {
		return AccountFile{}, err
	}
	all, err := s.withBatches(ctx, account, []File{f})
	return all[0], err
}

// StoredBytes returns the bytes of all files of an account.
func (s *Service) StoredBytes(ctx context.Context, account string) (int64, error) {
	n, err := storedBytes(ctx, s.db.Read(), account)
	return n, unreadable(err)
}

// withBatches adds to files the batches that have to do with them.
func (s *Service) withBatches(ctx context.Context, account string, files []File) ([]AccountFile, error) {
	all := make([]AccountFile, len(files))
	byID := make(map[string]*AccountFile, len(files))
	ids := make([]any, len(files))
	for i := range files {
		all[i].File = files[i]
		byID[files[i].ID], ids[i] = &all[i], files[i].ID
	}
	if len(files) == 0 {
		return all, nil
	}
	batches, err := batchesOfFiles(ctx, s.db.Read(), account, ids)
	if err != nil {
		return all, unreadable(err)
	}
	for i := range batches {
		b := &batches[i]
		for _, use := range []struct {
			file  string
			lines int64
		}{{b.InputFile, b.Total}, {b.OutputFile, b.Completed}, {b.ErrorFile, b.Failed}} {
			f := byID[use.file]
			if f == nil {
				continue
			}
			if !f.InUse {
				f.Batch, f.InUse = b.ID, !b.Status.ended()
			}
			f.Lines = cmp.Or(use.lines, f.Lines)
		}
	}
	return all, nil
}

// batchesOfFiles returns the batches of an account that read or write one of the files, the oldest first.
func batchesOfFiles(ctx context.Context, q querier, account string, files []any) ([]Batch, error) {
	list := make([]string, len(files))
	for i := range files {
		list[i] = fmt.Sprintf("$%d", i+2)
	}
	in := " IN (" + strings.Join(list, ", ") + ")"
	return selectBatches(ctx, q, `WHERE account_id = $1 AND (input_file_id`+in+`
			OR output_file_id`+in+` OR error_file_id`+in+`) ORDER BY seq`, append([]any{account}, files...)...)
}

// Upload is a file that an account uploads, and how its lines are checked.
type Upload struct {
	Account, Key string
	Name         string
	Endpoint     string // that its lines must name
}

// StoreChecked stores an input file, and validates it as it arrives, as the key sends its lines. It returns the errors of a
// file that is not stored because of them. An error of reading is returned as it is.
func (s *Service) StoreChecked(ctx context.Context, u Upload, from io.Reader) (_ File, errs []LineError, err error) {
	turn, err := s.acquireUpload(ctx, u.Account)
	if err != nil {
		return File{}, nil, err
	}
	defer turn.Release()
	check, err := s.completer.Checker(ctx, u.Account, u.Key)
	if err != nil {
		return File{}, nil, apierr.InvalidField("key", "the key cannot be used: it is paused, revoked or expired")
	}
	f := s.newUpload(u.Account, u.Key, u.Name)
	kept := false
	defer func() { s.endUpload(ctx, &f, kept) }()
	var lines int
	err = s.receive(ctx, &f, from, func(r io.Reader) (err error) {
		lines, errs, err = Check(ctx, r, u.Endpoint, s.settings.Load().MaxLineBytes, check)
		return err
	})
	if err != nil || len(errs) > 0 {
		return File{}, errs, err
	}
	f.Lines = int64(lines) // without blank ones
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error { return s.keepFile(ctx, tx, &f) })
	if err != nil {
		return File{}, nil, unwritable(err)
	}
	kept = true
	return f, nil, nil
}

// BatchesOf returns batches of an account, or of all if it is empty: the newest first, behind the batch with the id after
// unless that is empty; and whether there are more. The errors of their validation are left out.
func (s *Service) BatchesOf(ctx context.Context, account, after string, limit int) (_ []Batch, more bool, err error) {
	p := page{account: account, limit: limit}
	if after != "" {
		b, err := s.batchOf(ctx, account, after)
		if err != nil {
			return nil, false, err
		}
		p.after = b.seq
	}
	all, more, err := listBatches(ctx, s.db.Read(), p)
	return all, more, unreadable(err)
}

// UnfinishedOf returns the batches of an account that have not ended.
func (s *Service) UnfinishedOf(ctx context.Context, account string) ([]Batch, error) {
	all, err := unfinishedOf(ctx, s.db.Read(), account)
	return all, unreadable(err)
}

// batchOf returns a batch of an account, or of any if that is empty.
func (s *Service) batchOf(ctx context.Context, account, id string) (Batch, error) {
	if account != "" {
		return s.batch(ctx, account, id)
	}
	b, err := batchByID(ctx, s.db.Read(), onlyText(id))
	if errors.Is(err, sql.ErrNoRows) {
		return Batch{}, apierr.NoSuchObject("batch", id)
	}
	return b, unreadable(err)
}

// BatchOf returns a batch of an account, with the errors of its validation.
func (s *Service) BatchOf(ctx context.Context, account, id string) (b Batch, errs []LineError, err error) {
	if b, err = s.batchOf(ctx, account, id); err != nil {
		return Batch{}, nil, err
	}
	if errs, err = s.readErrors(ctx, &b); err != nil {
		return Batch{}, nil, apierr.Storage(err)
	}
	return b, errs, nil
}

// FailedLine is a line of an error file, without its body.
type FailedLine struct {
	CustomID  string
	Status    int // of the HTTP response; 0 if there was none
	RequestID string
	Code      string
	Message   string
}

// maxErrorBytes limits what FailedLines reads of an error file.
const maxErrorBytes = 1 << 20

// FailedLines returns the first lines of the error file of an account's batch.
func (s *Service) FailedLines(ctx context.Context, account, id string, most int) ([]FailedLine, error) {
	b, err := s.batchOf(ctx, account, id)
	if err != nil || b.ErrorFile == "" {
		return nil, err
	}
	f, err := s.file(ctx, account, b.ErrorFile)
	if isNotFound(err) { // deleted since
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, err := s.openFile(ctx, &f)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	var failed []FailedLine
	lines := bufio.NewScanner(io.LimitReader(content, maxErrorBytes))
	lines.Buffer(nil, maxErrorBytes)
	for len(failed) < most && lines.Scan() {
		if !gjson.ValidBytes(lines.Bytes()) {
			break // it is cut off by the limit
		}
		r := gjson.ParseBytes(lines.Bytes())
		e := r.Get("error")
		if r.Get("response").IsObject() {
			e = r.Get("response.body.error")
		}
		failed = append(failed, FailedLine{
			r.Get("custom_id").Str, int(r.Get("response.status_code").Int()), r.Get("response.request_id").Str,
			e.Get("code").String(), e.Get("message").String(),
		})
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return nil, apierr.Storage(fmt.Errorf("read an error file: %w", err))
	}
	return failed, nil
}

// Order is a batch that an account creates of one of its files.
type Order struct {
	Account, Key string
	InputFile    string
	Endpoint     string
	Window       string
	Once         string // orders of the key with the same value within 24 hours create one batch
}

// CreateOf creates a batch, and returns its id.
func (s *Service) CreateOf(ctx context.Context, o Order) (id string, err error) {
	b := Batch{InputFile: o.InputFile, Endpoint: o.Endpoint, Window: o.Window}
	if err := b.checkChoices(s.Endpoints()); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{o.InputFile, o.Endpoint, o.Window}, "\x00")))
	created, err := s.create(ctx, o.Account, b, namedOrigin(o.Key, "console", o.Once, sum[:]))
	return created.ID, err
}

// checkChoices returns an error if the endpoint is not one of those served, or there is no such completion window.
func (b *Batch) checkChoices(served []string) error {
	if !slices.Contains(served, b.Endpoint) {
		return apierr.InvalidField("endpoint", "endpoint: expected "+expectedEndpoint(b.Endpoint, served))
	}
	if !slices.Contains(Windows(), b.Window) {
		return apierr.InvalidField("completion_window", "completion_window: expected one of "+strings.Join(Windows(), ", "))
	}
	return nil
}

// CancelOf cancels a batch of an account, or of any if that is empty.
func (s *Service) CancelOf(ctx context.Context, account, id string) error {
	b, err := s.batchOf(ctx, account, id)
	if err != nil {
		return err
	}
	_, err = s.cancel(ctx, &b)
	return err
}
