package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget/quota"
	apierr "basegate/errors"
	"basegate/identity"
	"basegate/internal/form"
	"basegate/proxy/http1/strict"
)

const (
	filesOfOnePage = 50
	maxUploadField = 1 << 10 // bytes
)

type filesPage struct {
	pager
	Files    []fileRow
	Storage  gauge // bytes of all files
	Limits   batch.Settings
	Choices  []string       // endpoints
	Keys     []identity.Key // that can pay
	Problem  *problem       // why a file was not stored; nil if none was sent
	Wrong    []wrongLine    // of the file that was sent
	MaxWrong int
}

type fileRow struct {
	batch.File
	KeyName string
}

// maxProblems is the number of wrong lines after which a check ends.
const maxProblems = 100

func (c *Console) filesPage(r *request) error { return c.showFiles(r, http.StatusOK, filesPage{}) }

func (c *Console) showFiles(r *request, status int, page filesPage) error {
	page.Limits, page.Choices, page.MaxWrong = c.Batches.Limits(), c.Batches.Endpoints(), maxProblems
	files, more, err := c.Batches.FilesOf(r.ctx(), r.account.ID, r.query("after"), filesOfOnePage)
	if err != nil {
		return c.batchProblem(r, err)
	}
	next := ""
	if more {
		next = files[len(files)-1].ID
	}
	page.pager = r.pager(nil, next)
	used, err := c.Batches.StoredBytes(r.ctx(), r.account.ID)
	if err != nil {
		return c.batchProblem(r, err)
	}
	page.Storage = newGauge(used, quota.Limit(page.Limits.MaxAccountBytes))
	if page.Keys, err = c.Keys.Usable(r.ctx(), r.account.ID); err != nil {
		return err
	}
	known := c.names(r)
	for _, f := range files {
		page.Files = append(page.Files, fileRow{f, known.key(f.Key)})
	}
	return c.renderStatus(r, status, "files", "Files", page)
}

// payingKey returns the id of a key of the user that can pay.
func (c *Console) payingKey(ctx context.Context, account, id string) (string, error) {
	k, err := c.keyOf(ctx, id, account)
	if err != nil && !errors.Is(err, identity.ErrNoKey) {
		return "", err
	}
	if err != nil || k.State != identity.KeyActive || k.Expired() {
		return "", invalid("Choose one of your active keys.").on("key")
	}
	return id, nil
}

// uploadFile stores the file of a form, and redirects to its page. Files with wrong lines are not stored; the page shows
// the lines.
func (c *Console) uploadFile(r *request) error {
	f, wrong, err := c.receiveFile(r)
	p, isProblem := errors.AsType[*problem](err)
	switch {
	case isProblem:
		return c.showFiles(r, p.status, filesPage{Problem: p})
	case err != nil:
		return err
	case len(wrong) > 0:
		return c.showFiles(r, http.StatusUnprocessableEntity, filesPage{Wrong: wrong})
	}
	return c.redirectDone(r, nil, "/files/"+f.ID, storedMessage(f))
}

func storedMessage(f batch.File) string {
	return fmt.Sprintf("%s stored: %s, no errors.", f.Name, formatCount(int(f.Lines), "line", "lines"))
}

// uploadFileByScript is uploadFile for the page's script, which shows the progress and then the file's page.
func (c *Console) uploadFileByScript(r *request) error {
	f, wrong, err := c.receiveFile(r)
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		return r.sendJSON(http.StatusUnprocessableEntity, map[string]any{"lines": wrong})
	}
	page := "/files/" + f.ID
	if err := c.setSealedCookie(r, "done", page, storedMessage(f), messageLife); err != nil {
		return err
	}
	return r.sendJSON(http.StatusCreated, map[string]any{"id": f.ID, "page": page, "lines": []wrongLine{}})
}

// receiveFile reads the form of an upload as it arrives: the fields, and then the file. Its body has no limit but those of
// files.
func (c *Console) receiveFile(r *request) (f batch.File, wrong []wrongLine, err error) {
	r.body.Unlimited = true
	defer func() { r.endUpload(err != nil || len(wrong) > 0) }()
	fieldsOf, err := form.NewReader(r.Request().Header.Get("Content-Type"), r.body)
	if err != nil {
		return batch.File{}, nil, errUnreadable
	}
	fields := map[string]string{"endpoint": c.Batches.Endpoints()[0]}
	for range 10 {
		part, err := fieldsOf.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return batch.File{}, nil, c.batchProblem(r, err)
		}
		if name := part.FormName(); name != "file" {
			value, err := io.ReadAll(io.LimitReader(part, maxUploadField))
			if err != nil {
				return batch.File{}, nil, c.batchProblem(r, err)
			}
			fields[name] = string(value)
			continue
		}
		return c.storeFile(r, part.FileName(), fieldsOf.Last(part), fields)
	}
	return batch.File{}, nil, invalid("Choose a file.").on("file")
}

func (c *Console) storeFile(r *request, name string, content io.Reader, fields map[string]string) (
	f batch.File, wrong []wrongLine, err error,
) {
	if name == "" {
		return batch.File{}, nil, invalid("Choose a file.").on("file")
	}
	key, err := c.payingKey(r.ctx(), r.account.ID, fields["key"])
	if err != nil {
		return batch.File{}, nil, err
	}
	if !slices.Contains(c.Batches.Endpoints(), fields["endpoint"]) {
		return batch.File{}, nil, invalid("Choose an endpoint.").on("endpoint")
	}
	upload := batch.Upload{Account: r.account.ID, Key: key, Name: name, Endpoint: fields["endpoint"]}
	f, errs, err := c.Batches.StoreChecked(r.ctx(), upload, content)
	if err != nil {
		return batch.File{}, nil, c.batchProblem(r, err)
	}
	return f, wrongLines(errs), nil
}

const (
	maxUploadDiscard = 64 << 20    // maxDiscard of an upload
	answerPatience   = time.Minute // for the response after an upload
)

// endUpload prepares the response to an upload. It discards the rest of a refused one.
func (r *request) endUpload(refused bool) {
	r.outliveBody()
	if refused {
		r.discardBody(maxUploadDiscard)
	} else {
		r.body.End()
	}
	control := http.NewResponseController(r.Response())
	control.SetWriteDeadline(time.Now().Add(answerPatience))
}

type filePage struct {
	fileRow
	Windows  []string
	Choices  []string       // endpoints
	Keys     []identity.Key // that can pay
	Key      string         // in the form
	Window   string         // in the form
	Endpoint string         // in the form
	Once     string         // in the form, so that one form creates one batch
	Problem  *problem       // why no batch was created; nil if it was not tried

	Estimates map[string]string // of what a batch with each key costs; empty if that is not known
}

const usualWindow = "24h"

func (c *Console) pathFile(r *request) (batch.File, error) {
	f, err := c.Batches.FileOf(r.ctx(), r.account.ID, r.param("file"))
	return f, c.batchProblem(r, err)
}

func (c *Console) filePage(r *request, f batch.File) error {
	return c.showFile(r, http.StatusOK, f, filePage{Window: usualWindow})
}

func (c *Console) showFile(r *request, status int, f batch.File, page filePage) (err error) {
	if page.Keys, err = c.Keys.Usable(r.ctx(), r.account.ID); err != nil {
		return err
	}
	page.fileRow = fileRow{f, c.names(r).key(f.Key)}
	page.Windows, page.Choices = batch.Windows(), c.Batches.Endpoints()
	page.Key, page.Once = cmp.Or(page.Key, f.Key), cmp.Or(page.Once, rand.Text())
	if len(page.Keys) > 0 && !slices.ContainsFunc(page.Keys, func(k identity.Key) bool { return k.ID == page.Key }) {
		page.Key = page.Keys[0].ID // as the form selects it
	}
	if f.Input() && f.Tokens > 0 {
		page.Estimates = c.estimates(r.ctx(), f.Tokens, page.Keys)
	}
	return c.renderStatus(r, status, "file", f.Name, &page)
}

func (c *Console) runFile(r *request, f batch.File) error {
	page := filePage{Key: r.field("key"), Window: r.field("window"), Endpoint: r.field("endpoint"), Once: r.field("once")}
	key, err := c.payingKey(r.ctx(), r.account.ID, page.Key)
	var id string
	if err == nil {
		id, err = c.Batches.CreateOf(r.ctx(), batch.Order{
			Account: r.account.ID, Key: key, InputFile: f.ID, Window: page.Window, Once: cmp.Or(page.Once, rand.Text()),
			Endpoint: cmp.Or(page.Endpoint, c.Batches.Endpoints()[0]),
		})
		err = c.batchProblem(r, err)
	}
	if p, ok := errors.AsType[*problem](err); ok && p != errNotFound {
		page.Problem = p
		return c.showFile(r, p.status, f, page)
	}
	return c.redirectDone(r, err, "/batches/"+id, "Batch of "+f.Name+" created.")
}

func (c *Console) downloadFile(r *request, f batch.File) error {
	return c.sendFile(r, f.Name, "application/jsonl", func(w http.ResponseWriter) error {
		return c.batchProblem(r, c.Batches.ServeContent(w, r.Request(), r.account.ID, f.ID))
	})
}

func (c *Console) deleteFile(r *request, f batch.File) error {
	err := c.Batches.DeleteOf(r.ctx(), r.account.ID, f.ID)
	return c.redirectDone(r, c.batchProblem(r, err), "/files", f.Name+" deleted.")
}

var (
	errUploadCut = newProblem(http.StatusBadRequest, "Incomplete upload",
		"The upload arrived incomplete. Nothing was stored. Upload the file again.").on("file")
	errUploadSlow = newProblem(http.StatusBadRequest, "Slow upload",
		"The upload was too slow. Nothing was stored. Upload the file again, or a part of it.").on("file")
)

// apiProblems are the problems of errors of the API about files and batches whose texts are the same for all.
var apiProblems = map[apierr.Code]*problem{
	apierr.NotFound:            errNotFound,
	apierr.FileInUse:           knownProblem(http.StatusConflict, "The file is in use", apierr.FileInUse),
	apierr.BatchNotCancellable: knownProblem(http.StatusConflict, "The batch has ended", apierr.BatchNotCancellable),
	apierr.StorageUnavailable:  knownProblem(http.StatusServiceUnavailable, "Files cannot be read or written", apierr.StorageUnavailable),
	apierr.TooManyBatches:      knownProblem(apierr.TooManyBatches.Status(), "Too many batches", apierr.TooManyBatches),
	apierr.Overloaded: newProblem(http.StatusServiceUnavailable, "Busy",
		"Too many files are being uploaded. Nothing was stored. Try again in a moment."),
}

// batchProblem converts an error of the API about files and batches, or of an upload's form, to a problem. It returns any
// other error unchanged, and those of a client that has disconnected.
func (c *Console) batchProblem(r *request, err error) error {
	e, ok := errors.AsType[*apierr.Error](err)
	switch {
	case err == nil, r.disconnected():
		return err
	case ok: // its cause may be a failure of the storage, which is not the upload's
		return c.apiProblem(r, e)
	case errors.Is(err, form.ErrMalformed), errors.Is(err, strict.ErrChunks):
		return errUnreadable.on("file")
	case errors.Is(err, form.ErrCut), errors.Is(err, strict.ErrLength), errors.Is(err, io.ErrUnexpectedEOF):
		return errUploadCut
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errUploadSlow
	}
	return err
}

// apiProblem converts an error of the API about files and batches to a problem. It returns any other one unchanged.
func (c *Console) apiProblem(r *request, e *apierr.Error) error {
	limits := c.Batches.Limits()
	if e.Code == apierr.StorageUnavailable {
		c.Log.Warn("page failed", zap.String("path", r.Path()), zap.Error(e))
	}
	if p := apiProblems[e.Code]; p != nil {
		return p
	}
	switch e.Code { //nolint:exhaustive // the others are not the user's
	case apierr.RequestTooLarge:
		return tooMuch("The file is larger than " + formatBytes(limits.MaxFileBytes) + ". Split it. Nothing was stored.")
	case apierr.StorageQuotaExceeded:
		return tooMuch("The file does not fit: the files of an account may take " + formatBytes(limits.MaxAccountBytes) +
			", and their number is limited. Delete some. Nothing was stored.")
	case apierr.InvalidRequest:
		return invalid("This was not accepted. Check " + e.Param + " and try again.").on(e.Param)
	}
	return e
}

func tooMuch(text string) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, "Too large", text).on("file")
}
