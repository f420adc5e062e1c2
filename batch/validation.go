package batch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.uber.org/zap"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/proxy"
)

// Checked is an input file whose lines are valid.
type Checked struct {
	Lines  int64
	Tokens int64 // an estimate of the most that they cost
}

// Check validates an input file for an endpoint: all of it, or up to maxErrors errors.
func Check(ctx context.Context, file io.Reader, endpoint string, maxLine int64, check proxy.LineCheck) (Checked, []LineError, error) {
	v := newValidation(endpoint, maxLine, check)
	err := v.read(ctx, file)
	return Checked{int64(len(v.lines)), v.tokens}, v.errors, err
}

// maxTokens limits the estimate of a file, far from an overflow.
const maxTokens = 1 << 60

// validation is the state of the validation of one file. Its memory for a line does not depend on the line's length.
type validation struct {
	endpoint string
	maxLine  int64
	check    proxy.LineCheck

	lines  []checkedLine
	tokens int64 // an estimate of the most that they cost
	models []string
	ids    map[[16]byte]int64 // hashes of the custom_ids, and their lines
	errors []LineError

	yield   func() error // lets others have their turn; may be nil
	yielded int64        // the offset in the file at the last turn
}

func newValidation(endpoint string, maxLine int64, check proxy.LineCheck) *validation {
	return &validation{endpoint: endpoint, maxLine: maxLine, check: check, ids: map[[16]byte]int64{}}
}

// read reads the file. Its error is that of the file, or of the gateway, which say nothing about the lines.
func (v *validation) read(ctx context.Context, file io.Reader) error {
	scanner := newLineScanner(file, v.maxLine)
	for n := 0; len(v.errors) < maxErrors; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		text, offset, err := scanner.next()
		switch {
		case errors.Is(err, io.EOF):
			if n == 0 {
				v.add(0, problem(codeEmptyFile, "", "the file has no lines"))
			}
			return nil
		case n == maxLines:
			v.add(scanner.number, problem(codeTooManyLines, "", "the file has more than %d lines; split it", maxLines))
			return nil
		case errors.Is(err, errLineTooLong):
			v.add(scanner.number, problem(codeLineTooLong, "", "the line is longer than %d bytes", v.maxLine))
			continue
		case err != nil:
			return fmt.Errorf("read the file: %w", err)
		}
		if err := v.line(text, offset, scanner.number); err != nil {
			return err
		}
		if v.yield != nil && offset-v.yielded >= validationSlice {
			v.yielded = offset
			if err := v.yield(); err != nil {
				return err
			}
		}
	}
	return nil
}

// line validates a line. Its error is the gateway's.
func (v *validation) line(text []byte, offset, number int64) error {
	l, refused := parseLine(text)
	switch {
	case refused != nil:
		v.add(number, refused)
		return nil
	case l.url != v.endpoint:
		v.add(number, problem(codeURL, "url", "url: got %q; expected %q, the endpoint of the batch", apierr.Clip(l.url), v.endpoint))
		return nil
	}
	sum := sha256.Sum256([]byte(l.customID))
	id := [16]byte(sum[:16])
	if earlier, doubled := v.ids[id]; doubled {
		v.add(number, problem(codeDuplicateID, "custom_id", "line %d has the same custom_id", earlier))
		return nil
	}
	v.ids[id] = number
	checked, err := v.check(v.endpoint, l.body)
	if err != nil {
		e := apierr.From(err)
		if e.Code.Status() >= 500 || e.Code == apierr.InvalidAPIKey {
			return err
		}
		v.add(number, problem(string(e.Code), e.Param, "%s", e.Message))
		return nil
	}
	v.tokens = min(v.tokens+checked.Tokens, maxTokens)
	index := slices.Index(v.models, checked.Model)
	if index < 0 {
		index = len(v.models)
		v.models = append(v.models, checked.Model)
	}
	ref := lineRef{model: index, offset: offset, length: int64(len(text))}
	v.lines = append(v.lines, checkedLine{ref, prefixOf(l.body)})
	return nil
}

// add adds an error; line 0 is the whole file.
func (v *validation) add(number int64, e *LineError) {
	v.errors = append(v.errors, LineError{e.Code, e.Message, e.Param, proxy.OrNull(number)})
}

const (
	validationSlice     = 1 << 20 // bytes of a file that are validated in one turn of its account
	maxLargeValidations = 8       // of files with several slices, whose lines are in memory from the first one on
)

// linesPerWrite bounds how long a write of lines delays the settlements of others.
const linesPerWrite = 2000

// validate validates the file of a new batch in turns between accounts, and then starts or fails it. An error means that it must
// be tried again, unless ctx has ended.
func (s *Service) validate(ctx context.Context, b *Batch, l holder) error {
	input, err := findFile(ctx, s.db.Read(), b.Account, b.InputFile, s.now())
	if err != nil {
		return fmt.Errorf("find the file of a batch: %w", err)
	}
	if input.Bytes > validationSlice {
		turn, err := s.largeFiles.Acquire(ctx, b.Account)
		if err != nil {
			return err
		}
		defer turn.Release()
	}
	turn, err := s.validations.Acquire(ctx, b.Account)
	if err != nil {
		return err
	}
	defer turn.Release()
	if s.completer.Standing(b.Key).Revoked {
		return s.failBatch(ctx, b, l, []LineError{{Code: endings[errRevoked].code, Message: keyRevoked}})
	}
	if err := s.clear(ctx, b.seq, l); err != nil { // what a crash has left of an earlier validation
		return err
	}
	check, err := s.completer.Checker(ctx, b.Account, b.Key, b.replay)
	if err != nil {
		return fmt.Errorf("validate a batch: %w", err)
	}
	v := newValidation(b.Endpoint, s.settings.Load().MaxBodyBytes, check)
	v.yield = func() error { return turn.Yield(ctx) }
	file, err := s.openFile(ctx, &input)
	if err != nil {
		return fmt.Errorf("open the file of a batch: %w", err)
	}
	defer file.Close()
	if err := v.read(ctx, file); err != nil {
		return err
	}
	if len(v.errors) > 0 {
		return s.failBatch(ctx, b, l, v.errors)
	}
	return s.startBatch(ctx, b, l, v)
}

// clear deletes the lines of a batch, if it has any.
func (s *Service) clear(ctx context.Context, seq int64, l holder) error {
	if lines, err := restOfLines(ctx, s.db.Read(), seq, 1); err == nil && len(lines) == 0 {
		return nil
	}
	for more := true; more; {
		err := s.writeLeased(ctx, seq, l, func(ctx context.Context, tx database.Tx) (err error) {
			more, err = clearLines(ctx, tx, seq, linesPerWrite)
			return err
		})
		if err != nil {
			return fmt.Errorf("delete the lines of a batch: %w", err)
		}
	}
	return nil
}

func (s *Service) failBatch(ctx context.Context, b *Batch, l holder, errs []LineError) error {
	text, err := json.Marshal(errs)
	if err != nil {
		return fmt.Errorf("encode the errors of a batch: %w", err)
	}
	// Not in the row, since they may quote the file.
	err = s.WriteObject(ctx, text, func(ctx context.Context, tx database.Tx, object string) error {
		if err := s.leases.check(ctx, tx, b.seq, l); err != nil {
			return err
		}
		failed, err := setStatus(ctx, tx, b.seq, Failed, s.now(), Validating)
		if err == nil && !failed {
			err = errCancelled
		}
		if err != nil {
			return err
		}
		if err := setErrors(ctx, tx, b.seq, object); err != nil {
			return err
		}
		return s.leases.release(ctx, tx, b.seq, l)
	})
	if errors.Is(err, errCancelled) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("fail a batch: %w", err)
	}
	s.ended(*b, Failed)
	s.log.Info("batch failed", zap.String("batch", b.ID), zap.String("code", errs[0].Code), zap.Int("errors", len(errs)))
	return nil
}

// startBatch writes the lines in the order in which they will run, and makes the output file.
func (s *Service) startBatch(ctx context.Context, b *Batch, l holder, v *validation) error {
	chunks := slices.Collect(slices.Chunk(sortByPrefix(v.lines), linesPerWrite))
	last := len(chunks) - 1
	for _, some := range chunks[:last] {
		err := s.writeLeased(ctx, b.seq, l, func(ctx context.Context, tx database.Tx) error { return insertLines(ctx, tx, b.seq, some) })
		if err != nil {
			return fmt.Errorf("write the lines of a batch: %w", err)
		}
		if err := v.yield(); err != nil {
			return err
		}
	}
	output := s.newOutput(b, "output")
	started := false
	err := s.writeLeased(ctx, b.seq, l, func(ctx context.Context, tx database.Tx) (err error) {
		if started, err = setStatus(ctx, tx, b.seq, InProgress, s.now(), Validating); err != nil || !started { // it is cancelled
			return err
		}
		if err := insertLines(ctx, tx, b.seq, chunks[last]); err != nil {
			return err
		}
		if err := setValidated(ctx, tx, b.seq, len(v.lines), v.models, output.ID); err != nil {
			return err
		}
		return insertFile(ctx, tx, &output)
	})
	if err != nil {
		return fmt.Errorf("start a batch: %w", err)
	}
	s.log.Info("batch validated", zap.String("batch", b.ID), zap.Int("lines", len(v.lines)), zap.Bool("started", started))
	return nil
}

// newOutput returns a file of results.
func (s *Service) newOutput(b *Batch, kind string) File {
	return File{
		ID: newID("file-"), Account: b.Account, Key: b.Key, Purpose: Output, Name: b.ID + "_" + kind + ".jsonl",
		CreatedAt: s.now(), ExpiresAt: b.ExpiresAt + s.keepOf(b), // until the batch ends
	}
}

// keepOf returns how long the results of a batch are kept, in seconds from its end.
func (s *Service) keepOf(b *Batch) int64 {
	return cmp.Or(b.outputKeep, int64(s.settings.Load().Keep.Seconds()))
}
