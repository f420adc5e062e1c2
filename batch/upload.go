package batch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime/multipart"
	"path"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/budget/admission"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/form"
	"basegate/internal/wait"
	"basegate/proxy"
)

// partSize is the size of the parts of an upload, in bytes.
const partSize = 4 << 20

var uploadBuffers = sync.Pool{New: func() any { b := make([]byte, partSize); return &b }}

// Limits of the fields of an upload.
const (
	maxField    = 1 << 10 // bytes
	maxParts    = 16
	minKeep     = 3600
	maxKeep     = 30 * 24 * 3600
	maxFilename = 255 // bytes
)

// upload is a file as it arrives. Parts come in any order, so the bytes are stored before the purpose is known.
type upload struct {
	service *Service
	call    *proxy.ExtensionCall
	file    File
	digest  []byte

	fields map[string]string // by the names of Go's SDK
}

// uploadFile serves POST /v1/files.
func (s *Service) uploadFile(c *proxy.ExtensionCall) (err error) {
	turn, err := s.acquireUpload(c.Request.Context(), c.Account, c.Key)
	if err != nil {
		return err
	}
	defer turn.Release()
	u := &upload{service: s, call: c, fields: map[string]string{}, file: s.newUpload(c.Account, c.Key, "")}
	kept := false
	defer func() { s.endUpload(c.Request.Context(), &u.file, kept) }()
	if err := u.read(); err != nil {
		return err
	}
	if err := u.check(); err != nil {
		return err
	}
	var f File
	err = s.createOnce(c.Request.Context(), originOf(c, u.digest), func(ctx context.Context, tx database.Tx, id string) (err error) {
		f, err = findFile(ctx, tx, c.Account, id, s.now())
		return err
	}, func(ctx context.Context, tx database.Tx) (string, error) {
		f = u.file
		return f.ID, s.keepFile(ctx, tx, &f)
	})
	if err != nil {
		return err
	}
	kept = f.ID == u.file.ID
	return sendJSON(c, f.toObject())
}

// newObjectName returns a random name.
func newObjectName() string { return strings.ToLower(rand.Text()) }

// read reads all parts.
func (u *upload) read() error {
	parts, err := form.NewReader(u.call.Request.Header.Get("Content-Type"), u.call.Request.Body)
	if err != nil {
		return apierr.InvalidField("file", "the body is not multipart/form-data; send the fields file and purpose, as curl -F does")
	}
	for n := 0; ; n++ {
		part, err := parts.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return broken(err)
		case n == maxParts:
			return apierr.InvalidField("file", fmt.Sprintf("the form has more than %d fields; expected file and purpose", maxParts))
		}
		if err := u.readPart(part); err != nil {
			return err
		}
	}
}

// broken returns the error of an upload whose form could not be read.
func broken(err error) error {
	e, refused := errors.AsType[*apierr.Error](err)
	switch {
	case errors.Is(err, form.ErrMalformed):
		return apierr.InvalidField("file", "the multipart/form-data is malformed: the header of a field has a control character or is no header, "+
			"or something follows the form's end; nothing was stored")
	case errors.Is(err, form.ErrCut), errors.Is(err, io.ErrUnexpectedEOF):
		return apierr.InvalidField("file", "the multipart/form-data ends without its closing delimiter, so a part of it may be missing; nothing was stored")
	case refused:
		return apierr.InvalidField("file", e.Message+"; nothing was stored")
	}
	return err // the client has disconnected
}

// spellings maps the names that Python's and Node's SDK give fields to those of Go's SDK.
var spellings = map[string]string{
	"expires_after[anchor]": "expires_after.anchor", "expires_after[seconds]": "expires_after.seconds",
}

func (u *upload) readPart(part *multipart.Part) error {
	name := part.FormName()
	spelled := cmp.Or(spellings[name], name)
	if _, twice := u.fields[spelled]; twice {
		return apierr.InvalidField(apierr.Clip(name), fmt.Sprintf("the field %q stands twice in the form", apierr.Clip(name)))
	}
	u.fields[spelled] = ""
	switch spelled {
	case "file":
		u.file.Name = cleanName(part.FileName())
		return u.store(part)
	case "":
		return apierr.InvalidField("file", `a field of the form has no name; expected a header such as Content-Disposition: form-data; name="file"`)
	case "purpose", "expires_after.anchor", "expires_after.seconds":
	default:
		return proxy.UnknownMember(name, []string{"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
	}
	value, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if err != nil {
		return broken(err)
	}
	if len(value) > maxField {
		return apierr.InvalidField(name, fmt.Sprintf("%s is longer than %d bytes", name, maxField))
	}
	u.fields[spelled] = string(value)
	return nil
}

// unnamed is the name of a file that is sent without one.
const unnamed = "upload.jsonl"

// newUpload returns a file of an account, of which nothing is stored yet.
func (s *Service) newUpload(account, key, name string) File {
	now := s.now()
	return File{
		ID: newID("file-"), Account: account, Key: key, Purpose: Input, Name: cleanName(name),
		CreatedAt: now, ExpiresAt: now + int64(s.settings.Load().Keep.Seconds()),
	}
}

// cleanName returns a file's name without its folder and what could not be shown, and of a length that can.
func cleanName(name string) string {
	if name == "" {
		return unnamed
	}
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(path.Base(strings.ReplaceAll(name, `\`, "/")), "\uFFFD"))
	return cmp.Or(strings.ToValidUTF8(name[:min(len(name), maxFilename)], ""), unnamed)
}

// readError is the error of what a file is read from.
type readError struct{ error }

// Unwrap returns the error.
func (e *readError) Unwrap() error { return e.error }

// store stores the file as it comes.
func (u *upload) store(part io.Reader) error {
	err := u.service.receive(u.call.Request.Context(), &u.file, part, discardAll)
	if failed, ok := errors.AsType[*readError](err); ok {
		return broken(failed)
	}
	return err
}

// partWriter stores what is written to it as parts of a file.
type partWriter struct {
	ctx     context.Context
	service *Service
	file    *File
	buffer  []byte // what is to be the next part
	digest  hash.Hash
	inLine  bool // the last line has no end yet
	err     error
}

// receive stores a file, which read reads to its end, with its size, lines and digest. Errors are *readError or those of the API. The
// caller calls endUpload.
func (s *Service) receive(ctx context.Context, f *File, from io.Reader, read func(io.Reader) error) error {
	buffer := uploadBuffers.Get().(*[]byte)
	defer uploadBuffers.Put(buffer)
	w := &partWriter{ctx: ctx, service: s, file: f, buffer: (*buffer)[:0], digest: sha256.New()}
	if err := read(io.TeeReader(from, w)); err != nil && w.err == nil {
		return &readError{err}
	}
	if w.err == nil && len(w.buffer) > 0 {
		w.err = s.storePart(ctx, f, w.buffer)
	}
	if w.inLine {
		f.Lines++
	}
	f.sha256 = w.digest.Sum(nil)
	return w.err
}

// discardAll reads to the end.
func discardAll(from io.Reader) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// Write implements io.Writer.
func (w *partWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && w.err == nil; {
		n := min(len(rest), cap(w.buffer)-len(w.buffer))
		w.buffer, rest = append(w.buffer, rest[:n]...), rest[n:]
		if len(w.buffer) == cap(w.buffer) {
			w.err = w.service.storePart(w.ctx, w.file, w.buffer)
			w.buffer = w.buffer[:0]
		}
	}
	w.digest.Write(p)
	w.file.Lines += int64(bytes.Count(p, []byte("\n")))
	w.inLine = len(p) > 0 && p[len(p)-1] != '\n'
	return len(p), w.err
}

// storePart stores a piece of an upload, if the limits of the file and its account allow it.
func (s *Service) storePart(ctx context.Context, f *File, piece []byte) error {
	size := int64(len(piece))
	limits := s.settings.Load()
	if f.Bytes+size > limits.MaxFileBytes {
		return apierr.FileTooLarge(limits.MaxFileBytes)
	}
	_, stored, err := storedOf(ctx, s.db.Read(), f.Account)
	if err != nil {
		return unavailable(err)
	}
	s.mu.Lock()
	used := stored + s.uploading[f.Account]
	fits := used+size <= limits.MaxAccountBytes
	p := partOf(f, piece)
	if fits {
		s.uploading[f.Account] += size
		f.Bytes += size
	}
	s.mu.Unlock()
	if !fits {
		return apierr.StorageQuota(limits.MaxAccountBytes, used-f.Bytes)
	}
	if err := s.put(ctx, p); err != nil {
		if storage.IsFull(err) {
			s.log.Error("the storage of files is full", zap.Error(err))
		}
		return apierr.Storage(err)
	}
	return nil
}

// endUpload ends the count of an upload's bytes as such, and marks its parts for deletion unless they are kept.
func (s *Service) endUpload(ctx context.Context, f *File, kept bool) {
	s.mu.Lock()
	if s.uploading[f.Account] -= f.Bytes; s.uploading[f.Account] <= 0 {
		delete(s.uploading, f.Account)
	}
	s.mu.Unlock()
	if kept {
		return
	}
	s.db.Submit(func(tx database.Tx) error { return markDeleted(ctx, tx, objectsOfFile+notKept, f.ID) })
	wait.Wake(s.deleted)
}

// check validates the fields, once all have arrived.
func (u *upload) check() error {
	_, stored := u.fields["file"]
	purpose, given := u.fields["purpose"]
	anchor := u.fields["expires_after.anchor"]
	seconds, expires := u.fields["expires_after.seconds"]
	switch {
	case !stored:
		return apierr.InvalidField("file", "the form has no field file; expected the file to be stored")
	case !given:
		return apierr.InvalidField("purpose", `the form has no field purpose; expected "batch"`)
	case purpose != string(Input):
		return apierr.InvalidField("purpose", fmt.Sprintf(`purpose: got %q; expected "batch"`, apierr.Clip(purpose)))
	case anchor != "" && anchor != "created_at":
		return apierr.InvalidField("expires_after", fmt.Sprintf(`expires_after[anchor]: got %q; expected "created_at"`, apierr.Clip(anchor)))
	case anchor != "" && !expires:
		return apierr.InvalidField("expires_after", "expires_after[seconds] is missing")
	}
	keep := int64(u.service.settings.Load().Keep.Seconds())
	if expires {
		n, err := strconv.ParseUint(seconds, 10, 32) // which takes no sign
		if keep = int64(n); err != nil || keep < minKeep || keep > maxKeep {
			return apierr.InvalidField("expires_after", fmt.Sprintf("expires_after[seconds]: got %q; expected an integer from %d to %d",
				apierr.Clip(seconds), minKeep, maxKeep))
		}
	}
	u.file.ExpiresAt = u.file.CreatedAt + keep
	d := sha256.New()
	fmt.Fprintf(d, "%x\x00%s\x00%d", u.file.sha256, u.file.Name, keep)
	u.digest = d.Sum(nil)
	return nil
}

// keepFile inserts the row of a file, all of which is in the storage, if its account may have it.
func (s *Service) keepFile(ctx context.Context, tx database.Tx, f *File) error {
	if err := s.checkQuota(ctx, tx, f); err != nil {
		return err
	}
	if err := insertFile(ctx, tx, f); err != nil {
		return err
	}
	return keepParts(ctx, tx, f)
}

// checkQuota returns an error if the files of the account are too many or too large together with a new one. Other gateways may
// have stored some meanwhile.
func (s *Service) checkQuota(ctx context.Context, tx database.Tx, f *File) error {
	n, stored, err := storedOf(ctx, tx, f.Account)
	if err != nil {
		return err
	}
	limits := s.settings.Load()
	switch {
	case n >= limits.MaxAccountFiles:
		return apierr.TooManyFiles(limits.MaxAccountFiles, limits.MaxAccountBytes, stored)
	case stored+f.Bytes > limits.MaxAccountBytes:
		return apierr.StorageQuota(limits.MaxAccountBytes, stored)
	}
	return nil
}

// acquireUpload waits for a place for an upload, before any of it is read.
func (s *Service) acquireUpload(ctx context.Context, account, key string) (*admission.Turn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadWait, errManyUploads)
	defer cancel()
	turn, err := s.uploads.AcquireOf(ctx, account, key)
	if errors.Is(err, errManyUploads) {
		return nil, apierr.Overload(apierr.NoMemory, "too many files are uploaded at the moment", uploadRetry, err)
	}
	return turn, err
}

var errManyUploads = errors.New("no upload has ended in time")
