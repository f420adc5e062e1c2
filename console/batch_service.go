package console

import (
	"context"
	"io"
	"net/http"
	"time"
)

// BatchService keeps the files of accounts and runs batches of them. An account sees its own only; in the methods about
// batches, an empty account stands for all. Errors of the user are those of the API, of package errors.
type BatchService interface {
	Limits() BatchLimits

	// Files returns files, the newest first, behind the file with the id after unless that is empty; and whether there are
	// more.
	Files(ctx context.Context, account, after string, limit int) (files []StoredFile, more bool, err error)
	File(ctx context.Context, account, id string) (StoredFile, error)
	StoredBytes(ctx context.Context, account string) (int64, error)
	// StoreFile stores a file and checks its lines as it arrives. A file with wrong lines is not stored.
	StoreFile(ctx context.Context, f NewFile, from io.Reader) (StoredFile, []LineProblem, error)
	// ServeFile responds with the content of a file.
	ServeFile(w http.ResponseWriter, r *http.Request, account, id string) error
	DeleteFile(ctx context.Context, account, id string) error

	// Batches returns batches as Files returns files.
	Batches(ctx context.Context, account, after string, limit int) (batches []Batch, more bool, err error)
	UnfinishedBatches(ctx context.Context, account string) ([]Batch, error)
	Batch(ctx context.Context, account, id string) (Batch, error)
	FailedLines(ctx context.Context, account, id string, limit int) ([]LineProblem, error)
	CreateBatch(ctx context.Context, b NewBatch) (id string, err error)
	CancelBatch(ctx context.Context, account, id string) error
}

// BatchLimits are what a user can choose, and how much files may take.
type BatchLimits struct {
	MaxFileBytes, MaxAccountBytes int64
	Windows, Endpoints            []string
}

// NewFile is a file to be stored.
type NewFile struct {
	Account, Key, Name, Endpoint string
}

// NewBatch is a batch to be created.
type NewBatch struct {
	Account, Key, File, Endpoint, Window string
	Once                                 string // batches of a key with the same value are one
}

// StoredFile is a file of an account.
type StoredFile struct {
	ID, Name, Key        string
	Input                bool // a batch can be created of it
	Bytes                int64
	Lines                int64 // 0 if it is not known
	CreatedAt, ExpiresAt time.Time
	Batch                string // that reads or writes it; empty if there is none
	InUse                bool   // the batch has not ended
}

// Batch is a batch of an account.
type Batch struct {
	ID, Account, Key                             string
	Status, Endpoint, Window                     string
	Model                                        string // empty if its lines name several
	InputFile, OutputFile, ErrorFile             string // ids; empty if there is none
	CreatedAt, StartedAt, ExpiresAt, EndedAt     time.Time
	Total, Completed, Failed                     int64 // lines
	PromptTokens, CachedTokens, CompletionTokens int64
	WaitingFor                                   string // the API's word; empty if lines run
	ResetsAt                                     time.Time
	Problems                                     []LineProblem // of its validation; empty in lists
}

// LineProblem is a line of an input file that is wrong, or one of a batch that has failed.
type LineProblem struct {
	Line      int64  // from 1; 0 if the problem is that of the whole file, or if it is not known
	CustomID  string // of a line that has failed
	Status    int    // of the HTTP response; 0 if there was none
	RequestID string
	Code      string
	Param     string
	Message   string // may quote the line: see withoutQuotes
}
