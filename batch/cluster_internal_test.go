package batch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"basegate/batch/storage"
	"basegate/budget/admission"
	"basegate/database"
	"basegate/gateway/config"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/internal/s3test"
	"basegate/proxy"
	"basegate/proxy/stream"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

var testSettings = Settings{
	MaxFileBytes: 1 << 20, MaxAccountBytes: 1 << 20, MaxAccountFiles: 1000, MaxBodyBytes: 1 << 10, Keep: time.Hour, MaxUnfinished: 100, PerBackend: 8, Attempts: 3,
	Models: []string{"m"},
}

// testCluster is a database and a storage that gateways share.
type testCluster struct {
	settings database.Settings
	open     func() storage.Store
	db       *database.DB // of the test
}

// eachStorage runs a test of gateways on one PostgreSQL database, on a folder and on a bucket that they share.
func eachStorage(t *testing.T, test func(*testing.T, *testCluster)) {
	t.Helper()
	t.Run("folder", func(t *testing.T) { test(t, newCluster(t)) })
	t.Run("bucket", func(t *testing.T) {
		server := s3test.Start(t)
		s3test.Setenv(t)
		c := newCluster(t)
		c.open = func() storage.Store {
			store, err := storage.OpenS3(config.Bucket{
				Endpoint: server.Address, Name: s3test.Bucket, Prefix: "cluster", Region: s3test.Region, Plaintext: true,
			})
			must(t, err)
			return store
		}
		test(t, c)
	})
}

// newCluster returns a cluster that shares a folder.
func newCluster(t *testing.T) *testCluster {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "files")
	c := &testCluster{settings: databasetest.PostgresSettings(t, t.TempDir()), open: func() storage.Store {
		store, err := storage.OpenDisk(folder)
		must(t, err)
		return store
	}}
	c.db = c.database(t)
	_, err := c.write(t, `CREATE TABLE charges (request_id TEXT PRIMARY KEY, line TEXT NOT NULL, tokens BIGINT NOT NULL)`)
	must(t, err)
	return c
}

func (c *testCluster) database(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), c.settings, zap.NewNop())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// write executes a statement of the test.
func (c *testCluster) write(t *testing.T, text string, args ...any) (n int64, err error) {
	t.Helper()
	err = c.db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		result, err := tx.ExecContext(t.Context(), text, args...)
		if err == nil {
			n, err = result.RowsAffected()
		}
		return err
	})
	return n, err
}

// number returns the number that a query has found.
func (c *testCluster) number(t *testing.T, text string, args ...any) (n int64) {
	t.Helper()
	must(t, c.db.Read().QueryRowContext(t.Context(), text, args...).Scan(&n))
	return n
}

// testGateway is one gateway of a testCluster.
type testGateway struct {
	*Service
	*testCompleter

	cluster *testCluster
	id      int32
	epoch   atomic.Int64 // 0: it has none
}

// start starts a gateway, and returns it when it takes batches. It is closed at the end of the test.
func (c *testCluster) start(t *testing.T, name string) *testGateway {
	t.Helper()
	g := c.newGateway(t, name)
	must(t, g.Start(t.Context()))
	t.Cleanup(g.Close)
	poll.Until(t, name+" takes batches", func() bool {
		return c.number(t, `SELECT count(*) FROM batch_runners WHERE gateway = $1`, g.id) == 1 && g.perBackend() > 0
	})
	return g
}

func (c *testCluster) newGateway(t *testing.T, name string) *testGateway {
	t.Helper()
	store := c.open()
	t.Cleanup(func() { must(t, store.Close()) })
	g := &testGateway{testCompleter: newTestCompleter(name), cluster: c}
	g.Service = New(c.database(t), store, g.testCompleter, testSettings, zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)))
	g.join(t, name)
	g.Join(func() (int32, int64, bool) { epoch := g.epoch.Load(); return g.id, epoch, epoch > 0 })
	return g
}

// join begins an epoch.
func (g *testGateway) join(t *testing.T, name string) {
	t.Helper()
	var id int32
	var epoch int64
	must(t, g.cluster.db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		return tx.QueryRowContext(t.Context(), `SELECT gateway, epoch FROM ledger_join_v1($1, 'test', 1)`, name).Scan(&id, &epoch)
	}))
	if g.id == 0 {
		g.id = id // the same in each epoch
	}
	g.epoch.Store(epoch)
}

// reap ends the epoch of another gateway, which does not know it.
func (g *testGateway) reap(t *testing.T, dead *testGateway) {
	t.Helper()
	must(t, g.cluster.db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		var reaped bool
		err := tx.QueryRowContext(t.Context(), `SELECT ledger_reap_v1($1, $2, $3, $4, (SELECT beat FROM gateway WHERE id = $3))`,
			g.id, g.epoch.Load(), dead.id, dead.epoch.Load()).Scan(&reaped)
		if err == nil && !reaped {
			err = errors.New("the epoch has not ended")
		}
		return err
	}))
}

// create creates a batch of n lines.
func (g *testGateway) create(t *testing.T, n int) string {
	t.Helper()
	b, err := g.Create(t.Context(), "a", "k", "lines.jsonl", "24h", strings.NewReader(inputLines(n)))
	must(t, err)
	return b.ID
}

// inputLines returns n lines of an input file.
func inputLines(n int) string {
	var file strings.Builder
	for i := range n {
		fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"line %d"}}`+"\n", i, i)
	}
	return file.String()
}

// await waits until a batch has a status.
func (g *testGateway) await(t *testing.T, id string, status Status) (d Batch) {
	t.Helper()
	poll.Until(t, "the batch is "+string(status), func() bool {
		var err error
		d, err = g.BatchOf(t.Context(), "", id)
		must(t, err)
		return d.Status == status
	})
	return d
}

// ids returns how often each custom_id stands in a file.
func (g *testGateway) ids(t *testing.T, file string) map[string]int {
	t.Helper()
	found := map[string]int{}
	if file == "" {
		return found
	}
	content, err := g.Content(t.Context(), file)
	must(t, err)
	defer content.Close()
	lines := bufio.NewScanner(content)
	for lines.Scan() {
		if !gjson.ValidBytes(lines.Bytes()) {
			t.Errorf("a result is not JSON: %q", lines.Text())
		}
		found[gjson.GetBytes(lines.Bytes(), "custom_id").Str]++
	}
	must(t, lines.Err())
	return found
}

// checkResults checks that each of n lines ended in one of the files, once, and that each success was charged once.
func (g *testGateway) checkResults(t *testing.T, d Batch, n int) {
	t.Helper()
	output, failures := g.ids(t, d.OutputFile), g.ids(t, d.ErrorFile)
	for i := range n {
		id := fmt.Sprint(i)
		if output[id]+failures[id] != 1 {
			t.Errorf("line %s: %d results and %d errors, want one of both", id, output[id], failures[id])
		}
		if charged := g.cluster.number(t, `SELECT count(*) FROM charges WHERE line = $1`, "line "+id); charged != int64(output[id]) {
			t.Errorf("line %s was charged %d times, and has %d results", id, charged, output[id])
		}
	}
	if d.Total != int64(n) || d.Completed != int64(len(output)) || d.Failed != int64(len(failures)) {
		t.Errorf("the counts are %+v, want %d results and %d errors of %d", d.toObject().Counts, len(output), len(failures), n)
	}
	if tokens := g.cluster.number(t, `SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT) FROM charges`); tokens != d.InputTokens+d.OutputTokens {
		t.Errorf("%d tokens were charged, and the batch has used %d", tokens, d.InputTokens+d.OutputTokens)
	}
}

// testCompleter serves lines, each when the test lets it.
type testCompleter struct {
	gateway string
	backend *testBackend
	serving atomic.Int64
	memory  *admission.Memory

	mu      sync.Mutex
	gate    chan struct{} // closed: lines are served; replaced by hold
	first   int           // lines that do not wait for it
	prompts []string

	standings map[string]proxy.Standing                                    // of keys; the others may send lines
	cold      bool                                                         // the model does not run
	check     func(ctx context.Context, account string, body []byte) error // may be nil
}

func newTestCompleter(gateway string) *testCompleter {
	c := &testCompleter{gateway: gateway, backend: &testBackend{}, gate: make(chan struct{}), memory: admission.NewMemory(1 << 20)}
	close(c.gate)
	return c
}

// hold makes the lines behind the first n wait until the returned function is called.
func (c *testCompleter) hold(n int) (serve func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gate := make(chan struct{})
	c.gate, c.first = gate, n
	return sync.OnceFunc(func() { close(gate) })
}

// sent returns the prompts of all lines, in the order in which they came.
func (c *testCompleter) sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.prompts)
}

var lastRequest atomic.Int64

// Allocate implements Completer.
func (c *testCompleter) Allocate(key string) admission.Allocation { return c.memory.Allocate(key) }

// ServeLine implements Completer.
func (c *testCompleter) ServeLine(ctx context.Context, l proxy.Line) proxy.LineResult {
	if l.Place == nil {
		l.Memory.Release()
		return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForModel, Release: func() {}}
	}
	prompt := gjson.GetBytes(l.Body, "prompt").Str
	c.mu.Lock()
	c.prompts = append(c.prompts, prompt)
	gate := c.gate
	if c.first--; c.first >= 0 {
		gate = make(chan struct{})
		close(gate)
	}
	c.mu.Unlock()
	c.serving.Add(1)
	defer c.serving.Add(-1)
	select {
	case <-gate:
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), errLeaseLost) {
			l.Memory.Release()
			return proxy.LineResult{State: proxy.LineCancelled, Began: true, Release: func() {}}
		}
		<-gate // a response that has arrived at the same moment
	}
	id := fmt.Sprintf("req_%s_%d", c.gateway, lastRequest.Add(1))
	return proxy.LineResult{
		RequestID: id, Status: 200, Body: []byte(`{"usage":{"prompt_tokens":4,"completion_tokens":6}}`), Usage: stream.Usage{Prompt: 4, Completion: 6},
		Settlement: &testSettlement{id: id, line: prompt}, Release: l.Memory.Release,
	}
}

// AcquirePlace implements Completer.
func (c *testCompleter) AcquirePlace(_ string, perBackend int, _ bool) (proxy.Place, proxy.WaitReason) {
	c.mu.Lock()
	cold := c.cold
	c.mu.Unlock()
	if cold {
		return nil, proxy.WaitsForModel
	}
	if c.backend.take(int64(perBackend)) {
		return c.backend, ""
	}
	return nil, proxy.WaitsForCapacity
}

// Standing implements Completer.
func (c *testCompleter) Standing(key string) proxy.Standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standings[key]
}

// setCold sets whether the model does not run.
func (c *testCompleter) setCold(cold bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cold = cold
}

// set sets what a key may do.
func (c *testCompleter) set(key string, st proxy.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.standings == nil {
		c.standings = map[string]proxy.Standing{}
	}
	c.standings[key] = st
}

// Checker implements Completer.
func (c *testCompleter) Checker(ctx context.Context, account, _ string, _ bool) (proxy.LineCheck, error) {
	c.mu.Lock()
	check := c.check
	c.mu.Unlock()
	return func(_ string, body []byte) (proxy.CheckedLine, error) {
		if check == nil {
			return proxy.CheckedLine{Model: "m"}, nil
		}
		return proxy.CheckedLine{Model: "m"}, check(ctx, account, body)
	}, nil
}

// testSettlement charges a line in a table of the test.
type testSettlement struct {
	id, line  string
	abandoned bool
}

func (s *testSettlement) Write(ctx context.Context, tx database.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (request_id, line, tokens) VALUES ($1, $2, 10)`, s.id, s.line)
	return err
}

func (s *testSettlement) Commit() {}

func (s *testSettlement) Abandon() { s.abandoned = true }

// testBackend is a backend as one gateway sees it.
type testBackend struct {
	mu      sync.Mutex
	running int64
	total   *atomic.Int64 // over all gateways, if the test counts them
	most    *atomic.Int64
}

func (b *testBackend) take(most int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running >= most {
		return false
	}
	b.running++
	if b.total != nil {
		for n, most := b.total.Add(1), b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
		}
	}
	return true
}

// Release implements proxy.Place.
func (b *testBackend) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	if b.total != nil {
		b.total.Add(-1)
	}
}

// runnerOf returns which of two gateways runs a batch.
func runnerOf(t *testing.T, a, b *testGateway) (runner, other *testGateway) {
	t.Helper()
	poll.Until(t, "a gateway runs the batch", func() bool { return a.jobCount()+b.jobCount() > 0 })
	if a.jobCount() > 0 {
		return a, b
	}
	return b, a
}

func TestBatchOfADeadGatewayIsFinishedByAnother(t *testing.T) {
	eachStorage(t, func(t *testing.T, c *testCluster) {
		const lines, recorded = 60, 20
		a, b := c.start(t, "a"), c.start(t, "b")
		serve := map[*testGateway]func(){a: a.hold(recorded), b: b.hold(recorded)}
		id := a.create(t, lines)
		dead, successor := runnerOf(t, a, b)
		serve[successor] = successor.hold(0)
		defer serve[a]()
		defer serve[b]()
		poll.Until(t, "the first results are recorded", func() bool { return c.number(t, `SELECT completed FROM batches`) == recorded })
		successor.reap(t, dead)
		poll.Until(t, "the other gateway runs lines", func() bool { return successor.serving.Load() > 0 })
		serve[dead]() // both have the same lines; those of the dead gateway end first, and do not count
		poll.Until(t, "the dead gateway has no line", func() bool { return dead.serving.Load() == 0 && dead.jobCount() == 0 })
		if now := c.number(t, `SELECT completed FROM batches`); now != recorded {
			t.Errorf("%d results are recorded, want the %d of before the epoch ended", now, recorded)
		}
		serve[successor]()
		d := successor.await(t, id, Completed)
		successor.checkResults(t, d, lines)
		if n := c.number(t, `SELECT count(*) FROM batch_leases`); n != 0 {
			t.Errorf("%d leases of the batch are left", n)
		}
	})
}

// jobCount returns how many batches the gateway runs.
func (s *Service) jobCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

func TestOutputCanBeReadAtAnyGatewayWhileItsBatchRuns(t *testing.T) {
	eachStorage(t, func(t *testing.T, c *testCluster) {
		a, b := c.start(t, "a"), c.start(t, "b")
		serveA, serveB := a.hold(20), b.hold(20)
		defer serveA()
		defer serveB()
		id := a.create(t, 40)
		runner, other := runnerOf(t, a, b)
		poll.Until(t, "the first results are recorded", func() bool { return c.number(t, `SELECT completed FROM batches`) == 20 })
		var before []byte
		for _, g := range []*testGateway{runner, other} {
			d, err := g.BatchOf(t.Context(), "", id)
			must(t, err)
			content, err := g.Content(t.Context(), d.OutputFile)
			must(t, err)
			defer content.Close()
			if before, err = io.ReadAll(content); err != nil || len(before) == 0 || before[len(before)-1] != '\n' {
				t.Errorf("got %d bytes, %v, want whole lines", len(before), err)
			}
		}
		// The download of a file whose batch ends meanwhile goes on.
		serveOther := other.hold(0)
		defer serveOther()
		other.reap(t, runner)
		d, err := other.BatchOf(t.Context(), "", id)
		must(t, err)
		content, err := other.Content(t.Context(), d.OutputFile)
		must(t, err)
		defer content.Close()
		head := make([]byte, len(before)/2)
		_, err = io.ReadFull(content, head)
		must(t, err)
		serveA()
		serveB()
		serveOther()
		other.await(t, id, Completed)
		tail, err := io.ReadAll(content)
		if err != nil || string(head)+string(tail) != string(before) {
			t.Errorf("the download has %d bytes, %v, want the %d that counted when it began", len(head)+len(tail), err, len(before))
		}
	})
}

func TestCancellationReachesTheRunnerFromAnyGateway(t *testing.T) {
	c := newCluster(t)
	a, b := c.start(t, "a"), c.start(t, "b")
	defer a.hold(20)()
	defer b.hold(20)()
	id := a.create(t, 40)
	poll.Until(t, "the first results are recorded", func() bool { return c.number(t, `SELECT completed FROM batches`) == 20 })
	_, other := runnerOf(t, a, b)
	_, err := other.CancelOf(t.Context(), "a", id)
	must(t, err)
	d := other.await(t, id, StatusCancelled)
	other.checkResults(t, d, 40)
	if d.Failed == 0 {
		t.Error("no line was cancelled")
	}
}

func TestPlacesOfABackendAreTheClusters(t *testing.T) {
	c := newCluster(t)
	var total, most atomic.Int64
	var gateways []*testGateway
	var serve []func()
	settings := testSettings
	settings.PerBackend = 9 // a remainder would move to another gateway every ten seconds
	for _, name := range []string{"a", "b", "c"} {
		g := c.newGateway(t, name)
		g.Reload(settings)
		g.backend.total, g.backend.most = &total, &most
		serve = append(serve, g.hold(0))
		must(t, g.Start(t.Context()))
		t.Cleanup(g.Close)
		gateways = append(gateways, g)
	}
	poll.Until(t, "all take batches", func() bool { return c.number(t, `SELECT count(*) FROM batch_runners`) == 3 })
	var ids []string
	for range 3 {
		ids = append(ids, gateways[0].create(t, 400))
	}
	poll.Until(t, "each gateway runs a batch, and all places are taken", func() bool {
		return total.Load() == 9 && !slices.ContainsFunc(gateways, func(g *testGateway) bool { return g.serving.Load() == 0 })
	})
	for _, f := range serve {
		f()
	}
	for _, id := range ids {
		gateways[1].await(t, id, Completed)
	}
	if n := most.Load(); n != 9 {
		t.Errorf("%d lines ran at the backend at a time, want 9", n)
	}
}

func TestDrainedGatewayLeavesItsBatchesToOthers(t *testing.T) {
	c := newCluster(t)
	a := c.start(t, "a")
	serve := a.hold(0)
	defer serve()
	id := a.create(t, 40)
	poll.Until(t, "the gateway sends lines", func() bool { return a.serving.Load() > 0 })
	b := c.start(t, "b")
	a.Drain()
	poll.Until(t, "the gateway takes no batches", func() bool { return c.number(t, `SELECT count(*) FROM batch_runners`) == 1 })
	if n := b.serving.Load(); n > 0 {
		t.Errorf("the other gateway runs %d lines, want none before those of the first have ended", n)
	}
	serve()
	d := b.await(t, id, Completed)
	b.checkResults(t, d, 40)
	if n := c.number(t, `SELECT count(*) FROM charges WHERE request_id LIKE 'req\_a\_%'`); n == 0 || n == 40 {
		t.Errorf("%d lines are of the drained gateway, want those that ran", n)
	}
}

func TestGatewayThatReturnsRunsItsBatchesAgain(t *testing.T) {
	c := newCluster(t)
	a := c.start(t, "a")
	serve := a.hold(0)
	id := a.create(t, 40)
	poll.Until(t, "the gateway sends lines", func() bool { return a.serving.Load() == 8 })
	a.epoch.Store(0)
	a.join(t, "a") // after an outage, say; its lines still run
	serve()
	a.checkResults(t, a.await(t, id, Completed), 40)
}

func TestWaitingBatchSaysWhyAtAnyGateway(t *testing.T) {
	c := newCluster(t)
	a, b := c.start(t, "a"), c.start(t, "b")
	for _, g := range []*testGateway{a, b} {
		s := g.Limits()
		s.PerBackend = 0
		g.Reload(s)
	}
	id := a.create(t, 2)
	for _, g := range []*testGateway{a, b} {
		poll.Until(t, g.gateway+" says what the batch waits for", func() bool {
			b, err := g.BatchOf(t.Context(), "a", id)
			must(t, err)
			all, _, err := g.BatchesOf(t.Context(), "a", "", 10)
			must(t, err)
			one, listed := b.WaitsFor(), all[0].WaitsFor()
			return one != nil && one.Reason == proxy.WaitsForCapacity && listed != nil && listed.Reason == proxy.WaitsForCapacity
		})
	}
}

func TestObjectsOfADeadGatewayAreDeleted(t *testing.T) {
	c := newCluster(t)
	a, b := c.start(t, "a"), c.start(t, "b")
	for _, g := range []*testGateway{a, b} {
		p := partOf(&File{ID: "file-" + g.gateway}, []byte("bytes"))
		p.object = "half-" + g.gateway
		must(t, g.put(t.Context(), p))
	}
	b.reap(t, a)
	sweep := func() {
		poll.Until(t, "the gateway deletes what has expired", b.leases.sweeps)
		must(t, b.sweepOnce(t.Context(), map[string]time.Time{}))
	}
	sweep()
	if _, err := b.store.Open(t.Context(), "half-a", 0, 5); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the object of the dead gateway: %v, want it deleted", err)
	}
	content, err := b.store.Open(t.Context(), "half-b", 0, 5)
	if err != nil {
		t.Fatalf("the object that a gateway writes: %v", err)
	}
	must(t, content.Close())
	err = a.write(t.Context(), func(ctx context.Context, tx database.Tx) error { return keepObject(ctx, tx, "half-a") })
	if !errors.Is(err, errSwept) {
		t.Errorf("the dead gateway keeps its object: %v, want errSwept", err)
	}
}

// A commit whose reply is lost may have reserved the object: it is reserved again, and deleted if it does not come to count.
func TestReservationWhoseReplyIsLostIsRepeated(t *testing.T) {
	g := startService(t)
	p := partOf(&File{ID: "file-x"}, []byte("bytes"))
	reserve := func() error {
		return g.write(t.Context(), func(ctx context.Context, tx database.Tx) error {
			return insertObject(ctx, tx, p, "writing", g.leases.holder(), g.clock().UnixMicro())
		})
	}
	must(t, reserve())
	must(t, g.put(t.Context(), p))
	lost := partOf(&File{ID: "file-x"}, []byte("bytes"))
	p = lost
	must(t, reserve())
	g.discard(t.Context(), lost)
	poll.Until(t, "only the other one is to be kept", func() bool {
		return g.cluster.number(t, `SELECT count(*) FROM objects WHERE file = 'file-x' AND state = 'writing'`) == 1
	})
}

func TestIdempotencyKeyHoldsOverGateways(t *testing.T) {
	c := newCluster(t)
	a, b := c.start(t, "a"), c.start(t, "b")
	defer a.hold(0)()
	defer b.hold(0)()
	a.create(t, 1)
	file := ""
	must(t, c.db.Read().QueryRowContext(t.Context(), `SELECT id FROM files`).Scan(&file))
	const tries = 10
	ids := make(chan string, 2*tries)
	var creating sync.WaitGroup
	for range tries {
		for _, g := range []*testGateway{a, b} {
			creating.Go(func() {
				id, err := g.CreateOf(t.Context(), Order{Account: "a", Key: "k", InputFile: file, Endpoint: "/v1/completions", Window: "1h", Once: "x"})
				if err != nil {
					t.Error(err)
				}
				ids <- id
			})
		}
	}
	creating.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Errorf("one key has created %s and %s", first, id)
		}
	}
	if n := c.number(t, `SELECT count(*) FROM batches`); n != 2 {
		t.Errorf("there are %d batches, want 2", n)
	}
}

// awayStore is a storage that can be away, such as a bucket.
type awayStore struct {
	storage.Store
	away *atomic.Bool
}

func (s awayStore) Put(ctx context.Context, name string, data []byte, flush bool) error {
	if s.away.Load() {
		return errAway
	}
	return s.Store.Put(ctx, name, data, flush)
}

func (s awayStore) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if s.away.Load() {
		return nil, errAway
	}
	return s.Store.Open(ctx, name, offset, length)
}

var errAway = errors.New("the storage is away")

// A gateway that starts while the storage is away serves on, takes no batch, and runs batches when the storage is back.
// If it then is that of other gateways, it is used; if not, it is not.
func TestGatewayStartsWhileTheStorageIsAway(t *testing.T) {
	c := newCluster(t)
	right, away := c.open, &atomic.Bool{}
	c.open = func() storage.Store { return awayStore{right(), away} }
	away.Store(true)
	start := func(name string) *testGateway {
		g := c.newGateway(t, name)
		must(t, g.Start(t.Context()))
		t.Cleanup(g.Close)
		return g
	}
	a := start("a")
	put := func(g *testGateway) error { return g.put(t.Context(), partOf(&File{ID: "file-x"}, []byte("x"))) }
	if err := put(a); !errors.Is(err, errAway) {
		t.Errorf("a write before the check: %v, want %v", err, errAway)
	}
	away.Store(false)
	id := a.create(t, 3)
	a.checkResults(t, a.await(t, id, Completed), 3)

	folder := t.TempDir()
	away.Store(true)
	c.open = func() storage.Store {
		wrong, err := storage.OpenDisk(folder)
		must(t, err)
		return awayStore{wrong, away}
	}
	b := start("b")
	away.Store(false)
	if err := put(b); !errors.Is(err, ErrStorageMismatch) {
		t.Errorf("a write to another storage: %v, want %v", err, ErrStorageMismatch)
	}
	a.await(t, a.create(t, 3), Completed)
	if n := c.number(t, `SELECT count(*) FROM batch_runners WHERE gateway = $1`, b.id); n != 0 {
		t.Error("the gateway with another storage takes batches")
	}
}

func TestGatewayWithAnotherFolderIsRefused(t *testing.T) {
	c := newCluster(t)
	a := c.start(t, "a")
	elsewhere := *c
	folder := t.TempDir()
	elsewhere.open = func() storage.Store {
		store, err := storage.OpenDisk(folder)
		must(t, err)
		return store
	}
	b := elsewhere.newGateway(t, "b")
	if err := b.Start(t.Context()); !errors.Is(err, ErrStorageMismatch) {
		t.Errorf("a gateway with another folder starts: %v", err)
	}
	a.Close()                                  // a storage that was replaced while no gateway ran is a new one
	must(t, a.leases.leave(t.Context(), true)) // Close gives up after two seconds
	b = elsewhere.start(t, "b")
	id := b.create(t, 3)
	b.checkResults(t, b.await(t, id, Completed), 3)
}
