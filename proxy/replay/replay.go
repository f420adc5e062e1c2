// Package replay keeps responses so that a request which asks for it gets the same bytes again.
//
// A response has a name and an encryption key, both derived from the request: its account, endpoint, checkpoint, adapter and canonical
// body, the server that responded, and a secret that the gateways on a database share. Storage and database hold ciphertext,
// keyed hashes, sizes and times: without the request itself nothing of it can be read, and it can only be found by a guess of
// the whole body. A response is an object of the storage of files. Its row is committed together with the request's charge, and the
// object is written after that, without a flush: one that a crash has left missing or cut fails its authentication, and is a miss.
// A failure of the storage or of the database is never one of the request: it is served as if nothing were
// kept.
//
// Routing, charges and the choice of requests whose responses can be repeated are left to package proxy.
package replay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/database"
	"basegate/internal/wait"
)

// Settings are the limits of what is kept. Sizes are in bytes.
type Settings struct {
	MaxBytes           int64
	MaxBytesPerAccount int64
	Keep               time.Duration // of a response since it was stored
	AcrossGPUs         bool          // backends with different labels share responses
}

// Store keeps responses. It is safe for concurrent use, also by several gateways on one database.
type Store struct {
	db       *database.DB
	objects  storage.Objects
	settings atomic.Pointer[Settings]
	log      *zap.Logger

	secret   atomic.Pointer[[]byte]
	pausedTo atomic.Int64 // when the storage is tried again after a failure, in nanoseconds since 1970
	failures prometheus.Counter
	seed     maphash.Seed // of the keys of running

	mu      sync.Mutex
	running map[uint64]chan struct{} // of equal requests the first, until it has stored its response or ended
	used    map[string]int64         // bytes by account, as of the latest sweep and this gateway's changes since; nil before it
	total   int64                    // their sum

	loop wait.Loop
}

// New returns a Store, which keeps nothing before Start.
func New(db *database.DB, s Settings, log *zap.Logger) *Store {
	store := &Store{db: db, log: log, seed: maphash.MakeSeed(), running: map[uint64]chan struct{}{}}
	store.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "basegate_replay_failures_total",
		Help: "Failures of the storage or the database, after each of which no response is kept or replayed for 15 s.",
	})
	store.Reload(s)
	return store
}

// Failures is the metric of the failures of the storage and the database.
func (s *Store) Failures() prometheus.Collector { return s.failures }

// Reload replaces the limits. What exceeds lower ones is deleted by the next sweep.
func (s *Store) Reload(settings Settings) { s.settings.Store(&settings) }

// Start gives the store its storage, and starts to delete what has expired, what exceeds the limits, and what deleted accounts have
// left, until Close. Nothing else may be called before.
func (s *Store) Start(ctx context.Context, objects storage.Objects) {
	s.objects = objects
	s.loop.Start(ctx, func(ctx context.Context) { wait.Every(ctx, sweepInterval, s.sweep) })
}

// Close ends what Start has started.
func (s *Store) Close() { s.loop.Close() }

// Request is a request whose response may be kept.
type Request struct {
	Account, Endpoint, Checkpoint string

	Adapter   string                    // name at vLLM of the adapter of the checkpoint, with its version; empty: none
	MaxTokens int64                     // the client's, or the default
	Fields    iter.Seq2[string, []byte] // of the body: names and JSON, without nulls
}

// Server is what has generated a response.
type Server struct {
	Version string `json:"version"` // of vLLM; empty if it is not known
	GPU     string `json:"gpu"`     // the label
}

// Response is a response with what is known of the request that it was generated for.
type Response struct {
	Origin
	Body []byte // of a stream: its events without the last, [DONE]
}

// Origin describes the first request with a response.
type Origin struct {
	Server
	RequestID        string    `json:"request_id"`
	Time             time.Time `json:"time"`
	ContentType      string    `json:"content_type"`
	PromptTokens     int64     `json:"prompt_tokens"`
	CompletionTokens int64     `json:"completion_tokens"`
	FinishReasons    []string  `json:"finish_reasons,omitempty"` // of a stream
}

// Call is one request whose response may be kept.
type Call struct {
	store    *Store
	account  string
	material []byte // of names and keys: the request in canonical form
	flight   uint64 // the same for equal requests
	named    Server // of the latest name
	name     Name
	missing  Name // that the latest look in the database has not found
}

// NewCall returns the call of a request. It copies the body.
func (s *Store) NewCall(r *Request) (*Call, error) {
	material, err := appendRequest(nil, r)
	if err != nil {
		return nil, err
	}
	return &Call{store: s, account: r.Account, material: material, flight: maphash.Bytes(s.seed, material)}, nil
}

// Size returns the memory that the call holds, in bytes.
func (c *Call) Size() int64 { return int64(cap(c.material)) }

// Lead makes the call the one that equal calls of this gateway wait for, until leave is called, which may be called again. If
// there is such a call already, Lead waits for it to leave, and the call runs beside others.
func (c *Call) Lead(ctx context.Context) (leave func(), err error) {
	s := c.store
	s.mu.Lock()
	first, found := s.running[c.flight]
	if !found {
		first = make(chan struct{})
		s.running[c.flight] = first
	}
	s.mu.Unlock()
	if found {
		select {
		case <-first:
			return func() {}, nil
		case <-ctx.Done():
			return func() {}, context.Cause(ctx)
		}
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.running, c.flight)
		s.mu.Unlock()
		close(first)
	}), nil
}

// Limits of the storage's time. After a failure, nothing is tried for a while, so that a dead bucket delays few requests.
const (
	storageTimeout = 5 * time.Second
	bytesPerSecond = 1 << 20 // that a slow storage takes
	storagePause   = 15 * time.Second
)

// storageContext returns the context of reading or writing a number of bytes. It does not end with the request: what is half done
// would be in vain.
func storageContext(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storageTime(size))
}

// storageTime limits the time of reading or writing a number of bytes.
func storageTime(size int64) time.Duration {
	return storageTimeout + time.Duration(size)*time.Second/bytesPerSecond
}

// isPaused reports whether the storage has failed shortly before.
func (s *Store) isPaused() bool { return time.Now().UnixNano() < s.pausedTo.Load() }

// pause keeps calls from the storage for a while.
func (s *Store) pause(err error) {
	s.failures.Inc()
	now := time.Now()
	if before := s.pausedTo.Swap(now.Add(storagePause).UnixNano()); before < now.UnixNano() {
		s.log.Warn("responses cannot be kept or replayed at the moment; requests are served without", zap.Error(err))
	}
}

// Find returns the response of a call that one of the servers has given, or nil if there is none or it cannot be read. grow is
// called with the memory that reading takes; its error is returned.
func (c *Call) Find(ctx context.Context, servers []Server, grow func(bytes int64) error) (*Response, error) {
	s := c.store
	if s.isPaused() {
		return nil, nil
	}
	ctx, cancel := storageContext(ctx, 0)
	defer cancel()
	secret, err := s.loadSecret(ctx)
	if err != nil {
		s.pause(err)
		return nil, nil
	}
	var tried []Server
	for _, server := range servers {
		if server = s.canonical(server); slices.Contains(tried, server) {
			continue
		}
		tried = append(tried, server)
		name := c.nameOf(secret, server)
		row, found, err := selectRow(ctx, s.db.Read(), name[:])
		if err != nil {
			s.pause(err)
			return nil, nil
		}
		if !found {
			c.missing = name
		}
		if !found || row.created.Before(time.Now().Add(-s.settings.Load().Keep)) {
			continue
		}
		if err := grow(row.bytes); err != nil {
			return nil, err
		}
		response, err := c.read(ctx, secret, server, name, &row)
		if err == nil {
			s.db.Submit(func(tx database.Tx) error { return updateUse(context.WithoutCancel(ctx), tx, name[:]) })
			return response, nil
		}
		if !errors.Is(err, errUnusable) && !errors.Is(err, storage.ErrNotFound) {
			s.pause(err)
			return nil, nil
		}
		if time.Since(row.created) < 2*storageTime(row.bytes) { // its object may be being written
			continue
		}
		s.log.Warn("a kept response is damaged or gone, and is forgotten", zap.Error(err))
		s.forget(ctx, &row)
	}
	return nil, nil
}

// canonical returns the server as names have it.
func (s *Store) canonical(server Server) Server {
	if s.settings.Load().AcrossGPUs {
		server.GPU = ""
	}
	return server
}

// read reads and decrypts a response.
func (c *Call) read(ctx context.Context, secret []byte, server Server, name Name, row *row) (*Response, error) {
	ctx, cancel := storageContext(ctx, row.bytes)
	defer cancel()
	sealed, err := c.store.objects.ReadObject(ctx, row.object, row.bytes)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errUnusable, err)
	}
	if err != nil {
		return nil, err
	}
	return c.open(secret, server, name, sealed)
}

// forget deletes a row whose object is of no use.
func (s *Store) forget(ctx context.Context, r *row) {
	err := s.db.WriteGrouped(context.WithoutCancel(ctx), func(tx database.Tx) error { return s.delete(ctx, tx, r) })
	if err != nil {
		s.pause(err)
		return
	}
	s.count(r.account, -r.bytes)
}

// delete deletes a row and its object in a transaction, unless it was replaced.
func (s *Store) delete(ctx context.Context, tx database.Tx, r *row) error {
	deleted, err := deleteRow(ctx, tx, r)
	if err != nil || !deleted {
		return err
	}
	return s.objects.DeleteObject(ctx, tx, r.object)
}

// Keep stores the response of a call if charge, which is called once, succeeds; its error is returned. kept reports whether the
// response is kept: by this call, or by another one unless replace is set. What exceeds the limits is deleted, the least recently
// used first. A process that is killed after Keep has returned loses nothing.
func (c *Call) Keep(ctx context.Context, r *Response, replace bool, charge func() error) (kept bool, err error) {
	s := c.store
	if s.isPaused() {
		return false, charge()
	}
	ctx = context.WithoutCancel(ctx)
	w, failure := c.begin(ctx, r, replace)
	err = charge()
	switch {
	case w == nil:
	case err != nil:
		failure = w.abandon(ctx)
	default:
		kept, failure = w.finish(ctx)
	}
	if failure != nil {
		s.pause(failure)
	}
	return kept, err
}

// keeping is the state of Keep.
type keeping struct {
	call    *Call
	row     row
	sealed  []byte
	replace bool
	changes map[string]int64 // of Store.used, by account
	pending *database.Pending
}

// begin encrypts a response and queues its row, which is then committed with the next write. It returns nil for a response that is
// larger than the limits.
func (c *Call) begin(ctx context.Context, r *Response, replace bool) (*keeping, error) {
	s := c.store
	bounded, cancel := storageContext(ctx, 0)
	defer cancel()
	secret, err := s.loadSecret(bounded)
	if err != nil {
		return nil, err
	}
	server := s.canonical(r.Server)
	name := c.nameOf(secret, server)
	sealed, err := c.seal(secret, server, name, r)
	if err != nil {
		return nil, err
	}
	if limits := s.settings.Load(); int64(len(sealed)) > min(limits.MaxBytes, limits.MaxBytesPerAccount) {
		return nil, nil
	}
	if err := s.loadUse(bounded); err != nil {
		return nil, err
	}
	w := &keeping{
		call: c, sealed: sealed, replace: replace,
		row: row{name: name[:], account: c.account, bytes: int64(len(sealed))},
	}
	w.pending = s.db.Enqueue(func(tx database.Tx) error { return w.record(ctx, tx) })
	return w, nil
}

// record inserts the row. The error may be errKept.
func (w *keeping) record(ctx context.Context, tx database.Tx) (err error) {
	s := w.call.store
	w.changes = map[string]int64{w.row.account: w.row.bytes}
	if w.replace || w.call.missing != Name(w.row.name) {
		if err := w.removeEarlier(ctx, tx); err != nil {
			return err
		}
	}
	if err := s.evict(ctx, tx, w.changes); err != nil {
		return err
	}
	if w.row.object, err = s.objects.RecordObject(ctx, tx, w.row.bytes); err != nil {
		return err
	}
	return insertRow(ctx, tx, &w.row)
}

// removeEarlier deletes the row of an earlier response with the same name. The error is errKept if that one is to stay.
func (w *keeping) removeEarlier(ctx context.Context, tx database.Tx) error {
	s := w.call.store
	before, found, err := selectRow(ctx, tx, w.row.name)
	if err != nil || !found {
		return err
	}
	if !w.replace && before.created.After(time.Now().Add(-s.settings.Load().Keep)) {
		return errKept
	}
	w.changes[before.account] -= before.bytes
	return s.delete(ctx, tx, &before)
}

// finish waits for the row and writes the object.
func (w *keeping) finish(ctx context.Context) (kept bool, err error) {
	s := w.call.store
	bounded, cancel := storageContext(ctx, w.row.bytes)
	defer cancel()
	if byOther, err := w.wait(bounded); byOther || err != nil {
		return byOther, err
	}
	if err := s.objects.PutObject(bounded, w.row.object, w.sealed); err != nil {
		s.forget(ctx, &w.row)
		return false, err
	}
	return true, nil
}

// abandon takes the row back after the charge has failed.
func (w *keeping) abandon(ctx context.Context) error {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	byOther, err := w.wait(ended)
	switch {
	case errors.Is(err, database.ErrCancelled):
		return nil
	case err == nil && !byOther:
		w.call.store.forget(ctx, &w.row)
	}
	return err
}

// wait waits for the row, and reports whether an equal request has kept its response before.
func (w *keeping) wait(ctx context.Context) (byOther bool, err error) {
	err = w.pending.Wait(ctx)
	if errors.Is(err, errKept) || database.IsUnique(err) {
		return true, nil
	}
	if err == nil {
		for account, bytes := range w.changes {
			w.call.store.count(account, bytes)
		}
	}
	return false, err
}

// errKept is returned if the response of an equal request is kept already.
var errKept = errors.New("a response is kept already")

// loadSecret returns the secret that all gateways on the database share. The first one makes it.
func (s *Store) loadSecret(ctx context.Context) ([]byte, error) {
	if secret := s.secret.Load(); secret != nil {
		return *secret, nil
	}
	var secret []byte
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) (err error) {
		made := make([]byte, secretBytes)
		rand.Read(made) // never fails
		secret, err = insertSecret(ctx, tx, made)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the secret of kept responses: %w", err)
	}
	s.secret.Store(&secret)
	return secret, nil
}
