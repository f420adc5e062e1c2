// Package batch keeps files and runs batches: a file of requests goes in, a file of responses comes out.
//
// A batch is validated as a whole before any of its lines runs. The Completer then serves its lines as live requests
// are served, but only at backends with capacity that live requests leave free; accounts take turns, and within an
// account the batch with the earliest deadline goes first. A line's result and its charge are on disk together or not
// at all: results are a new part of the output file, and one transaction records the part, the charges and that the lines
// are done. After a crash a part that was not recorded is deleted, and the lines that were running run again. So each line
// ends in exactly one of the two files of its batch, once. The same holds of several gateways on one PostgreSQL database,
// whichever of them dies: see Join.
//
// Prompts and completions are in the objects of package storage, and nowhere else. Package validate defines what a line
// may hold, package budget is the ledger, and package proxy authenticates the calls of the API and renders their
// errors.
package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/budget/admission"
	"basegate/database"
	"basegate/internal/wait"
	"basegate/proxy"
)

// Settings are the limits. Sizes are in bytes.
type Settings struct {
	MaxFileBytes    int64
	MaxAccountBytes int64         // of all files of an account
	MaxAccountFiles int           // of an account
	Keep            time.Duration // how long a file is kept unless its creator chooses otherwise
	MaxBodyBytes    int64         // of a request, and of a line of a file

	MaxUnfinished int // batches of an account

	PerBackend  int // batch lines that a backend runs at a time
	Attempts    int // of a line whose failures may pass
	StartModels bool
	Replay      bool // lines may be answered by kept responses

	Models []string // short ids, for metrics
	Chat   bool     // one of them serves chat completions
}

// Completer is what a Service needs of a proxy.Server, which serves lines as live requests are served. Its methods are safe for concurrent use.
type Completer interface {
	// ServeLine sends a line to a backend. If the cause of ctx's end is a context.Canceled, the line is charged as a request
	// whose client has disconnected.
	ServeLine(ctx context.Context, l proxy.Line) proxy.LineResult
	// Allocate returns what counts the memory of a line of a key. The caller must release it, or pass it to ServeLine.
	Allocate(key string) admission.Allocation
	// AcquirePlace returns a place at a backend of the model that runs fewer than perBackend lines, or nil and what a
	// line would wait for. It starts the model if start is true. The caller must release the place.
	AcquirePlace(model string, perBackend int, start bool) (proxy.Place, proxy.WaitReason)
	// Standing tells whether a key may send lines at the moment. It does not block.
	Standing(key string) proxy.Standing
	// Checker returns a function that validates the bodies of lines as the key sends them, and returns the short ids of
	// their models. With replay, each asks for the response of an earlier request. The functions' errors are those of the API.
	Checker(ctx context.Context, account, key string, replay bool) (proxy.LineCheck, error)
}

// Service keeps files and runs batches. It is safe for concurrent use.
type Service struct {
	db        *database.DB
	store     storage.Store
	completer Completer
	log       *zap.Logger
	settings  atomic.Pointer[Settings]
	metrics   *metrics
	clock     func() time.Time
	onEnd     func(Batch)
	leases    leases

	checking    sync.Mutex  // held while the storage is checked
	sameStorage atomic.Bool // it is that of the other gateways

	mu         sync.Mutex // guards the fields below
	uploading  map[string]int64
	jobs       map[int64]*job                    // running batches by batches.seq
	validating map[int64]context.CancelCauseFunc // batches by batches.seq

	drained chan struct{} // closed when no new line is sent to a backend
	drain   func()

	validations *admission.Turns // one is held while a slice of a file is validated
	largeFiles  *admission.Turns // one is held from the first slice of a file that has several to the last
	uploads     *admission.Turns

	changed chan struct{} // wakes the dispatcher
	created chan struct{} // wakes the poller
	deleted chan struct{} // wakes the sweeper
	tasks   sync.WaitGroup
	ctx     context.Context
	stop    context.CancelCauseFunc
}

const (
	uploadPlaces      = 32 // files that are uploaded at a time; each holds a buffer
	uploadsPerAccount = 8
	uploadWait        = 30 * time.Second // for a place
)

// New returns a Service. It runs nothing before Start.
func New(db *database.DB, store storage.Store, completer Completer, s Settings, log *zap.Logger) *Service {
	service := &Service{
		db: db, store: store, completer: completer, log: log, metrics: newMetrics(), clock: time.Now,
		uploading: map[string]int64{}, jobs: map[int64]*job{}, validating: map[int64]context.CancelCauseFunc{},
		validations: admission.NewTurns(1, 1), largeFiles: admission.NewTurns(maxLargeValidations, 2),
		uploads: admission.NewTurns(uploadPlaces, uploadsPerAccount),
		changed: make(chan struct{}, 1), created: make(chan struct{}, 1), deleted: make(chan struct{}, 1), drained: make(chan struct{}),
		onEnd: func(Batch) {},
	}
	service.drain = sync.OnceFunc(func() { close(service.drained) })
	service.leases.service = service
	service.Reload(s)
	return service
}

// OnEnd sets a function that is called with each batch that ends. It must not block. It is called before Start.
func (s *Service) OnEnd(f func(Batch)) { s.onEnd = f }

// ended reports the end of a batch.
func (s *Service) ended(b Batch, status Status) {
	b.Status = status
	s.onEnd(b)
}

// Start runs the batches that have not ended, until Close.
func (s *Service) Start(ctx context.Context) error {
	if began := s.clock().UnixMicro(); !s.leases.joined {
		s.leases.epoch = func() (int32, int64, bool) { return 1, began, true }
	}
	switch err := s.checkStorage(ctx); {
	case errors.Is(err, ErrStorageMismatch):
		return ErrStorageMismatch
	case ctx.Err() != nil:
		return err
	case err != nil:
		s.log.Error("the storage of files cannot be used at the moment: uploads and downloads get 503, and batches wait", zap.Error(err))
	}
	s.ctx, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.tasks.Go(s.poll)
	s.tasks.Go(s.dispatch)
	s.tasks.Go(s.sweep)
	return nil
}

// Drain stops sending lines to backends. Those that run end. Other gateways then run the rest.
func (s *Service) Drain() {
	s.drain()
	wait.Wake(s.created)
}

// Close cancels the lines that run, and waits for all goroutines. Recorded batches continue at the next Start, or in
// another gateway.
func (s *Service) Close() {
	s.Drain()
	s.stop(errStopping)
	s.tasks.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), leaveTimeout)
	defer cancel()
	if err := s.leases.leave(ctx, true); err != nil {
		s.log.Warn("the leases of batches could not be released; they end with the gateway's epoch", zap.Error(err))
	}
}

// leaveTimeout limits the wait for the database when the Service is closed.
const leaveTimeout = 2 * time.Second

// isDraining reports whether no new lines are sent to backends.
func (s *Service) isDraining() bool {
	select {
	case <-s.drained:
		return true
	default:
		return false
	}
}

// Reload replaces the settings.
func (s *Service) Reload(settings Settings) {
	s.settings.Store(&settings)
	s.metrics.know(settings.Models)
	wait.Wake(s.changed)
}

// write makes a write in a transaction that it may share with others.
func (s *Service) write(ctx context.Context, apply func(context.Context, database.Tx) error) error {
	return s.db.WriteGrouped(ctx, func(tx database.Tx) error { return apply(ctx, tx) })
}

// now returns the time in seconds, as clients see it.
func (s *Service) now() int64 { return s.clock().Unix() }
