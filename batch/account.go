package batch

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tidwall/gjson"

	"basegate/batch/storage"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/wait"
	"basegate/proxy"
)

// The operations of the API, the console and the command line. Each sees the files and batches of one account, or of all if that
// is empty, and its errors are those of the API. A command needs no Start: the gateway that runs on the database does the rest.

// Endpoints returns the endpoints that a batch may name: that of chat completions only where a model serves it.
func (s *Service) Endpoints() []string {
	if s.settings.Load().Chat {
		return slices.Clone(endpoints)
	}
	return slices.Clone(endpoints[:2])
}

// Limits returns the settings that are in force.
func (s *Service) Limits() Settings { return *s.settings.Load() }

// file returns a file, or the error that there is none.
func (s *Service) file(ctx context.Context, q database.Reader, account, id string) (File, error) {
	f, err := findFile(ctx, q, account, proxy.OnlyText(id), s.now())
	if errors.Is(err, sql.ErrNoRows) {
		err = apierr.NoSuchObject("file", id)
	}
	return f, unavailable(err)
}

// listFiles returns a page of files, all with one purpose unless that is empty, and whether there are more.
func (s *Service) listFiles(ctx context.Context, p page, purpose Purpose) (_ []File, more bool, err error) {
	if p.cursor != nil {
		f, err := s.file(ctx, s.db.Read(), p.account, *p.cursor)
		if err != nil {
			return nil, false, ofCursor(err)
		}
		p.after = f.seq
	}
	files, more, err := listFiles(ctx, s.db.Read(), p, purpose, s.now())
	return files, more, unavailable(err)
}

// FilesOf returns files with their batches, the newest first, behind the file with the id after unless that is empty; and whether
// there are more.
func (s *Service) FilesOf(ctx context.Context, account, after string, limit int) (_ []File, more bool, err error) {
	files, more, err := s.listFiles(ctx, page{account: account, cursor: proxy.OrNull(after), limit: limit}, "")
	if err == nil {
		err = s.addBatches(ctx, account, files)
	}
	return files, more, err
}

// FileOf returns a file with its batch.
func (s *Service) FileOf(ctx context.Context, account, id string) (File, error) {
	f, err := s.file(ctx, s.db.Read(), account, id)
	if err != nil {
		return File{}, err
	}
	files := []File{f}
	err = s.addBatches(ctx, account, files)
	return files[0], err
}

// Content returns the content of a file. The caller must close it.
func (s *Service) Content(ctx context.Context, id string) (io.ReadCloser, error) {
	f, err := s.file(ctx, s.db.Read(), "", id)
	if err != nil {
		return nil, err
	}
	return s.openFile(ctx, &f)
}

// DeleteOf deletes a file, unless a batch needs it.
func (s *Service) DeleteOf(ctx context.Context, account, id string) error {
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		f, err := s.file(ctx, tx, account, id)
		if err != nil {
			return err
		}
		using, err := batchUsing(ctx, tx, id)
		if err != nil {
			return err
		}
		if using != "" {
			return apierr.FileOfBatch(id, using)
		}
		return deleteFile(ctx, tx, f.ID)
	})
	if err != nil {
		return unavailable(err)
	}
	wait.Wake(s.deleted)
	return nil
}

// StoredBytes returns the bytes of all files of an account.
func (s *Service) StoredBytes(ctx context.Context, account string) (int64, error) {
	_, n, err := storedOf(ctx, s.db.Read(), account)
	return n, unavailable(err)
}

// addBatches adds to files the batches that have to do with them.
func (s *Service) addBatches(ctx context.Context, account string, files []File) error {
	if len(files) == 0 {
		return nil
	}
	byID := make(map[string]*File, len(files))
	for i := range files {
		byID[files[i].ID] = &files[i]
	}
	batches, err := batchesOfFiles(ctx, s.db.Read(), account, slices.Collect(maps.Keys(byID)))
	if err != nil {
		return unavailable(err)
	}
	for i := range batches {
		b := &batches[i]
		for file, lines := range map[string]int64{b.InputFile: b.Total, b.OutputFile: b.Completed, b.ErrorFile: b.Failed} {
			f := byID[file]
			if f == nil {
				continue
			}
			if !f.InUse {
				f.Batch, f.InUse = b.ID, !b.Status.Ended()
			}
			f.Lines = cmp.Or(lines, f.Lines)
		}
	}
	return nil
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
	turn, err := s.acquireUpload(ctx, u.Account, u.Key)
	if err != nil {
		return File{}, nil, err
	}
	defer turn.Release()
	check, err := s.completer.Checker(ctx, u.Account, u.Key, false)
	if err != nil {
		return File{}, nil, apierr.InvalidField("key", "the key cannot be used: it is paused, revoked or expired")
	}
	f := s.newUpload(u.Account, u.Key, u.Name)
	kept := false
	defer func() { s.endUpload(ctx, &f, kept) }()
	var checked Checked
	reading := context.WithoutCancel(ctx) // net/http ends ctx when the body fails, whose own error says why
	err = s.receive(ctx, &f, from, func(r io.Reader) (err error) {
		checked, errs, err = Check(reading, r, u.Endpoint, s.settings.Load().MaxBodyBytes, check)
		return err
	})
	if err != nil || len(errs) > 0 {
		return File{}, errs, err
	}
	f.Lines, f.Tokens = checked.Lines, checked.Tokens // without blank lines
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error { return s.keepFile(ctx, tx, &f) })
	if err != nil {
		return File{}, nil, unavailable(err)
	}
	kept = true
	return f, nil, nil
}

// Create stores an input file and creates a batch of it, in the name of a key. The first line names the endpoint.
func (s *Service) Create(ctx context.Context, account, key, name, window string, file io.Reader) (_ Batch, err error) {
	endpoint, file := EndpointOf(file, s.settings.Load().MaxBodyBytes)
	b := Batch{Endpoint: endpoint, Window: window}
	if err := b.checkChoices(endpoints); err != nil {
		return Batch{}, err
	}
	s.complete(&b, account, key)
	f := s.newUpload(account, key, name)
	defer func() { s.endUpload(ctx, &f, err == nil) }()
	if err := s.receive(ctx, &f, file, discardAll); err != nil {
		return Batch{}, err
	}
	b.InputFile = f.ID
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := s.keepFile(ctx, tx, &f); err != nil {
			return err
		}
		return s.addBatch(ctx, tx, &b)
	})
	return b, unavailable(err)
}

// batch returns a batch, or the error that there is none.
func (*Service) batch(ctx context.Context, q database.Reader, account, id string) (Batch, error) {
	b, err := findBatch(ctx, q, account, proxy.OnlyText(id))
	if errors.Is(err, sql.ErrNoRows) {
		err = apierr.NoSuchObject("batch", id)
	}
	return b, unavailable(err)
}

// listBatches returns a page of batches, and whether there are more.
func (s *Service) listBatches(ctx context.Context, p page) (_ []Batch, more bool, err error) {
	if p.cursor != nil {
		b, err := s.batch(ctx, s.db.Read(), p.account, *p.cursor)
		if err != nil {
			return nil, false, ofCursor(err)
		}
		p.after = b.seq
	}
	batches, more, err := listBatches(ctx, s.db.Read(), p)
	return batches, more, unavailable(err)
}

// BatchesOf returns batches without the errors of their validation: the newest first, behind the batch with the id after unless
// that is empty; and whether there are more.
func (s *Service) BatchesOf(ctx context.Context, account, after string, limit int) (_ []Batch, more bool, err error) {
	return s.listBatches(ctx, page{account: account, cursor: proxy.OrNull(after), limit: limit})
}

// UnfinishedOf returns the batches of an account that have not ended.
func (s *Service) UnfinishedOf(ctx context.Context, account string) ([]Batch, error) {
	all, err := unfinishedOf(ctx, s.db.Read(), account)
	return all, unavailable(err)
}

// BatchOf returns a batch, with the errors of its validation.
func (s *Service) BatchOf(ctx context.Context, account, id string) (Batch, error) {
	b, err := s.batch(ctx, s.db.Read(), account, id)
	if err == nil {
		err = s.readErrors(ctx, &b)
	}
	return b, err
}

// readErrors sets the errors of a batch; none if they have been deleted.
func (s *Service) readErrors(ctx context.Context, b *Batch) error {
	if b.errorsObject == "" {
		return nil
	}
	parts, err := partsOf(ctx, s.db.Read(), objectNamed, b.errorsObject)
	if err != nil || len(parts) == 0 {
		return unavailable(err)
	}
	text, err := s.ReadObject(ctx, b.errorsObject, parts[0].end)
	if errors.Is(err, storage.ErrNotFound) { // deleted since
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b.Errors)
	}
	if err != nil {
		return apierr.Storage(fmt.Errorf("read the errors of a batch: %w", err))
	}
	return nil
}

// CancelOf cancels a batch, and returns it as it is then.
func (s *Service) CancelOf(ctx context.Context, account, id string) (Batch, error) {
	var b Batch
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
		if b, err = s.batch(ctx, tx, account, id); err != nil || b.Status == Cancelling {
			return err
		}
		now := s.now()
		changed, err := setStatus(ctx, tx, b.seq, Cancelling, now, Validating, InProgress)
		if err == nil && !changed {
			return apierr.BatchHasEnded(b.ID, string(b.Status))
		}
		b.Status, b.CancellingAt = Cancelling, now
		return err
	})
	if err != nil {
		return Batch{}, unavailable(err)
	}
	wait.Wake(s.created)
	return b, nil
}

// FailedLine is a line of an error file, without its body.
type FailedLine struct {
	CustomID  string
	Status    int // of the HTTP response; 0 if there was none
	RequestID string
	Code      string
}

// maxErrorBytes limits what FailedLines reads of an error file.
const maxErrorBytes = 1 << 20

// FailedLines returns the first lines of the error file of an account's batch.
func (s *Service) FailedLines(ctx context.Context, account, id string, most int) ([]FailedLine, error) {
	b, err := s.batch(ctx, s.db.Read(), account, id)
	if err != nil || b.ErrorFile == "" {
		return nil, err
	}
	f, err := s.file(ctx, s.db.Read(), account, b.ErrorFile)
	if e, ok := errors.AsType[*apierr.Error](err); ok && e.Code == apierr.NotFound { // deleted since
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
			e.Get("code").String(),
		})
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return nil, apierr.Storage(fmt.Errorf("read an error file: %w", err))
	}
	return failed, nil
}
