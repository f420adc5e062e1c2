package batch

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"

	"basegate/proxy"
)

// File is one file. Times are in seconds since 1970.
type File struct {
	seq       int64
	ID        string
	Account   string
	Key       string // of its creator
	Purpose   Purpose
	Name      string
	Bytes     int64
	CreatedAt int64
	ExpiresAt int64

	sha256 []byte // nil while the file grows
	Lines  int64  // 0 if they are not known
	Tokens int64  // an estimate of the most that a batch of it costs; 0 if it is not known

	Batch string // the id of the newest batch that has to do with it, or of one that has not ended; set by FilesOf and FileOf
	InUse bool   // that batch has not ended
}

// Input reports whether a batch can be created of the file.
func (f *File) Input() bool { return f.Purpose == Input }

// Growing reports whether the file is that of a batch that has not ended. It is kept from that end on.
func (f *File) Growing() bool { return f.sha256 == nil }

// Purpose is what a file is for.
type Purpose string

// The purposes.
const (
	Input  Purpose = "batch"
	Output Purpose = "batch_output"
)

// fileObject is a file as the API shows it.
type fileObject struct {
	ID        string  `json:"id"`
	Object    string  `json:"object"`
	Bytes     int64   `json:"bytes"`
	CreatedAt int64   `json:"created_at"`
	ExpiresAt *int64  `json:"expires_at"` // null while the file grows
	Filename  string  `json:"filename"`
	Purpose   Purpose `json:"purpose"`
	Status    string  `json:"status"`
}

func (f *File) toObject() fileObject {
	expires := &f.ExpiresAt
	if f.Growing() {
		expires = nil
	}
	return fileObject{f.ID, "file", f.Bytes, f.CreatedAt, expires, f.Name, f.Purpose, "processed"}
}

// MarshalJSON shows the command line the object of the API, and whose it is.
func (f *File) MarshalJSON() ([]byte, error) { return marshalOwned(f.toObject(), f.Account, f.Key) }

// Status is the status of a batch.
type Status string

// The statuses of the API.
const (
	Validating      Status = "validating"
	Failed          Status = "failed"
	InProgress      Status = "in_progress"
	Finalizing      Status = "finalizing"
	Completed       Status = "completed"
	Expired         Status = "expired"
	Cancelling      Status = "cancelling"
	StatusCancelled Status = "cancelled"
)

// Ended reports whether a batch with this status does nothing any more.
func (s Status) Ended() bool {
	return s == Failed || s == Completed || s == Expired || s == StatusCancelled
}

// Batch is one batch. Times are in seconds since 1970; 0 means that the time has not come.
type Batch struct {
	seq      int64
	ID       string
	Account  string
	Key      string
	run      string // that its lines are part of; empty if there is none
	Endpoint string
	Window   string
	Status   Status
	Metadata []byte // JSON; null or nil if there is none
	Models   []string

	Errors []LineError // of the validation; set by BatchOf

	InputFile, OutputFile, ErrorFile string
	InputName                        string // empty if the file has been deleted
	outputKeep                       int64  // seconds; 0: the configured time
	errorsObject                     string // in the storage; empty if there is none
	replay                           bool   // kept responses may answer the lines

	Wait       waiting
	parkedAt   int64 // 0: a gateway may have it in memory
	parkedCaps int64 // Standing.Caps when its lines were refused

	CreatedAt, ExpiresAt                                         int64
	InProgressAt, FinalizingAt, CompletedAt, FailedAt, ExpiredAt int64
	CancellingAt, CancelledAt                                    int64
	Total, Completed, Failed                                     int64 // lines; those of the last two have results
	InputTokens, CachedTokens, OutputTokens, ReasoningTokens     int64
}

// remaining returns how many lines have no result yet.
func (b *Batch) remaining() int64 { return b.Total - b.Completed - b.Failed }

// Model returns the model of the batch's lines; empty if they name several.
func (b *Batch) Model() string {
	if len(b.Models) != 1 {
		return ""
	}
	return b.Models[0]
}

// WaitsFor returns what the batch waits for; nil if it does not wait.
func (b *Batch) WaitsFor() *Waiting {
	if b.Wait.Reason == "" || b.Status != InProgress && b.Status != Validating {
		return nil
	}
	if b.Wait.ResetsAt >= proxy.Never.Unix() {
		return &Waiting{Reason: b.Wait.Reason}
	}
	return &Waiting{b.Wait.Reason, proxy.OrNull(b.Wait.ResetsAt)}
}

// cancelled reports whether the batch was cancelled, whether or not it has ended.
func (b *Batch) cancelled() bool { return b.Status == Cancelling || b.Status == StatusCancelled }

// LineError is an error of the validation.
type LineError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int64  `json:"line"` // from 1; null if the error is the whole file's
}

// waiting is what a batch waits for, as its row says it.
type waiting struct {
	Reason   proxy.WaitReason
	ResetsAt int64 // seconds since 1970; 0: it is not known; or proxy.Never
}

// Waiting is what a batch waits for, as the API shows it.
type Waiting struct {
	Reason   proxy.WaitReason `json:"reason"`
	ResetsAt *int64           `json:"resets_at"`
}

type errorList struct {
	Object string      `json:"object"`
	Data   []LineError `json:"data"`
}

type requestCounts struct {
	Total     int64 `json:"total"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
}

type tokenUsage struct {
	InputTokens   int64            `json:"input_tokens"`
	InputDetails  map[string]int64 `json:"input_tokens_details"`
	OutputTokens  int64            `json:"output_tokens"`
	OutputDetails map[string]int64 `json:"output_tokens_details"`
	TotalTokens   int64            `json:"total_tokens"`
}

// batchObject is a batch as the API shows it: OpenAI's, and waiting_for.
type batchObject struct {
	ID           string          `json:"id"`
	Object       string          `json:"object"`
	Endpoint     string          `json:"endpoint"`
	Model        *string         `json:"model"`
	Errors       *errorList      `json:"errors"`
	InputFile    string          `json:"input_file_id"`
	Window       string          `json:"completion_window"`
	Status       Status          `json:"status"`
	OutputFile   *string         `json:"output_file_id"`
	ErrorFile    *string         `json:"error_file_id"`
	CreatedAt    int64           `json:"created_at"`
	InProgressAt *int64          `json:"in_progress_at"`
	ExpiresAt    int64           `json:"expires_at"`
	FinalizingAt *int64          `json:"finalizing_at"`
	CompletedAt  *int64          `json:"completed_at"`
	FailedAt     *int64          `json:"failed_at"`
	ExpiredAt    *int64          `json:"expired_at"`
	CancellingAt *int64          `json:"cancelling_at"`
	CancelledAt  *int64          `json:"cancelled_at"`
	Counts       requestCounts   `json:"request_counts"`
	Metadata     json.RawMessage `json:"metadata"`
	Usage        tokenUsage      `json:"usage"`
	WaitingFor   *Waiting        `json:"waiting_for"`
}

func (b *Batch) toObject() batchObject {
	o := batchObject{
		ID: b.ID, Object: "batch", Endpoint: b.Endpoint, InputFile: b.InputFile, Window: b.Window, Status: b.Status,
		Model: proxy.OrNull(b.Model()), OutputFile: proxy.OrNull(b.OutputFile), ErrorFile: proxy.OrNull(b.ErrorFile),
		CreatedAt: b.CreatedAt, InProgressAt: proxy.OrNull(b.InProgressAt), ExpiresAt: b.ExpiresAt, FinalizingAt: proxy.OrNull(b.FinalizingAt),
		CompletedAt: proxy.OrNull(b.CompletedAt), FailedAt: proxy.OrNull(b.FailedAt), ExpiredAt: proxy.OrNull(b.ExpiredAt),
		CancellingAt: proxy.OrNull(b.CancellingAt), CancelledAt: proxy.OrNull(b.CancelledAt),
		Counts: requestCounts{b.Total, b.Completed, b.Failed}, Metadata: b.Metadata, WaitingFor: b.WaitsFor(),
		Usage: tokenUsage{
			b.InputTokens,
			map[string]int64{"cached_tokens": b.CachedTokens},
			b.OutputTokens,
			map[string]int64{"reasoning_tokens": b.ReasoningTokens},
			b.InputTokens + b.OutputTokens,
		},
	}
	if len(b.Errors) > 0 {
		o.Errors = &errorList{"list", b.Errors}
	}
	return o
}

// MarshalJSON shows the command line the object of the API, and whose it is.
func (b *Batch) MarshalJSON() ([]byte, error) { return marshalOwned(b.toObject(), b.Account, b.Key) }

// marshalOwned returns an object with the account and the key that have created it behind its members.
func marshalOwned(object any, account, key string) ([]byte, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode an object: %w", err)
	}
	return fmt.Appendf(text[:len(text)-1], `,"account_id":%q,"key_id":%q}`, account, key), nil // ids need no escapes
}

// newID returns a prefix and 120 random bits.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:24]) }
