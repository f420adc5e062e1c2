package batch

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"basegate/database"
	apierr "basegate/errors"
)

// The operations of the command line. They need no Start: the gateway that runs on the database does the rest.

// Windows returns the completion windows.
func Windows() (names []string) {
	for _, w := range windows {
		names = append(names, w.name)
	}
	return names
}

// ErrBadWindow is returned by Create for a completion window that is not one of Windows.
var ErrBadWindow = errors.New("unknown completion window")

// Create stores an input file and creates a batch of it, in the name of a key. The first line names the endpoint.
func (s *Service) Create(ctx context.Context, account, key, name, window string, file io.Reader) (_ Batch, err error) {
	endpoint, file := EndpointOf(file, s.settings.Load().MaxLineBytes)
	b := Batch{Endpoint: endpoint, Window: window}
	s.complete(&b, account, key)
	if b.ExpiresAt == 0 {
		return Batch{}, fmt.Errorf("%w: got %q; expected one of %s", ErrBadWindow, window, strings.Join(Windows(), ", "))
	}
	f := s.newUpload(account, key, name)
	defer func() { s.endUpload(ctx, &f, err == nil) }()
	if err := s.receive(ctx, &f, file, discardAll); err != nil {
		return Batch{}, explained(err)
	}
	b.InputFile = f.ID
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := s.keepFile(ctx, tx, &f); err != nil {
			return err
		}
		return s.addBatch(ctx, tx, &b)
	})
	if err != nil {
		return Batch{}, explained(err)
	}
	return b, nil
}

// explained returns an error of the API with its message, which its log text leaves out.
func explained(err error) error {
	if e, ok := errors.AsType[*apierr.Error](err); ok {
		return fmt.Errorf("%s: %w", e.Message, err)
	}
	return err
}

// ErrNoBatch and ErrNoFile are returned for an id that does not exist.
var (
	ErrNoBatch = errors.New("no such batch")
	ErrNoFile  = errors.New("no such file")
)

// Details are a batch as the API shows it, and whose it is.
type Details struct {
	batchObject
	Account string `json:"account_id"`
	Key     string `json:"key_id"`
}

// Ended reports whether the batch does nothing any more.
func (d *Details) Ended() bool { return d.Status.ended() }

// Progress returns how many lines have a result, and how many there are.
func (d *Details) Progress() (ended, total int64) {
	return d.Counts.Completed + d.Counts.Failed, d.Counts.Total
}

func detailsOf(b *Batch, errs []LineError) Details {
	return Details{b.toObject(errs), b.Account, b.Key}
}

// Batches returns the latest batches of all accounts, up to a limit.
func (s *Service) Batches(ctx context.Context, limit int) ([]Details, error) {
	all, _, err := listBatches(ctx, s.db.Read(), page{limit: limit})
	if err != nil {
		return nil, fmt.Errorf("read batches: %w", err)
	}
	details := make([]Details, len(all))
	for i := range all {
		details[i] = detailsOf(&all[i], nil)
	}
	return details, nil
}

// Batch returns a batch. The error is ErrNoBatch if there is none.
func (s *Service) Batch(ctx context.Context, id string) (*Details, error) {
	b, errs, err := s.BatchOf(ctx, "", id)
	if isNotFound(err) {
		return nil, ErrNoBatch
	}
	d := detailsOf(&b, errs)
	return &d, err
}

// ErrEnded is returned by Cancel for a batch that has ended.
var ErrEnded = errors.New("the batch has ended")

// Cancel cancels a batch. The error may be ErrNoBatch or ErrEnded.
func (s *Service) Cancel(ctx context.Context, id string) error {
	err := s.CancelOf(ctx, "", id)
	if e, ok := errors.AsType[*apierr.Error](err); ok {
		switch e.Code { //nolint:exhaustive // the others say what failed
		case apierr.NotFound:
			return ErrNoBatch
		case apierr.BatchNotCancellable:
			return ErrEnded
		}
	}
	return err
}

// FileDetails are a file as the API shows it, and whose it is.
type FileDetails struct {
	fileObject
	Account string `json:"account_id"`
	Key     string `json:"key_id"`
}

// Expires returns when the file is deleted; zero for the results of a batch that has not ended.
func (f *FileDetails) Expires() time.Time {
	if f.ExpiresAt == nil {
		return time.Time{}
	}
	return time.Unix(*f.ExpiresAt, 0)
}

// Files returns the latest files of all accounts, up to a limit.
func (s *Service) Files(ctx context.Context, limit int) ([]FileDetails, error) {
	all, err := latestFiles(ctx, s.db.Read(), limit)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	details := make([]FileDetails, 0, len(all))
	for i := range all {
		details = append(details, FileDetails{all[i].toObject(), all[i].Account, all[i].Key})
	}
	return details, nil
}

// Content returns the content of a file. The caller must close it. The error is ErrNoFile if there is none.
func (s *Service) Content(ctx context.Context, id string) (io.ReadCloser, error) {
	f, err := fileByID(ctx, s.db.Read(), id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNoFile
	}
	if err != nil {
		return nil, fmt.Errorf("read a file: %w", err)
	}
	return s.openFile(ctx, &f)
}

// Delete deletes a file. A batch that has not ended keeps its files. The error may be ErrNoFile or an *InUseError.
func (s *Service) Delete(ctx context.Context, id string) error {
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		f, err := fileByID(ctx, tx, id)
		if err != nil {
			return err
		}
		using, err := batchUsing(ctx, tx, id)
		if err != nil {
			return err
		}
		if using != "" {
			return &InUseError{using}
		}
		return deleteFile(ctx, tx, &f)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNoFile
	}
	return err
}

// InUseError is returned by Delete for a file of a batch that has not ended.
type InUseError struct{ Batch string }

// Error names the batch and says what to do.
func (e *InUseError) Error() string {
	return fmt.Sprintf("the file belongs to %s, which has not ended: cancel it first", e.Batch)
}
