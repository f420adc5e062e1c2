package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"basegate/internal/postgrestest"
	"basegate/internal/wait"
)

// Columns of the proxies.
const (
	reverseProxy = "ReverseProxy"
	gateway      = "basegate"
	flushing     = "basegate, flush: 1s"
	oldGateway   = "old basegate"
	haproxy      = "HAProxy"
)

// Measures that goals or several experiments name.
const (
	cpuPerRequest = "CPU per request, µs"
	cpuPerEvent   = "CPU per event, µs"
	requestRate   = "requests per second"
	addedMedian   = "added latency, median, µs"
	addedP99      = "added latency, p99, µs"
	streamMemory  = "memory per held stream, KB"
	cacheHits     = "prompt tokens from the cache, %"
	busiest       = "busiest backend over the mean, requests"
)

// Columns of the other experiments.
const (
	withoutReceipt, withReceipt = "without a receipt", "with a receipt"
	untraced, traced            = "without traces", "every request traced"
	completion, chatCompletion  = "completion", "chat completion"
	onSQLite, onPostgres        = "SQLite", "PostgreSQL"
	liveRequests, inBatch       = "live requests", "batch"
	byPrefix, byInFlight        = "balance: prefix", "balance: least_inflight"
	oneReplica                  = "one replica with all the cache"
	oldOnPostgres               = "old basegate, PostgreSQL"
)

// gatewayColumns are the gateways of columns, but for the default one.
var gatewayColumns = map[string]gatewayOptions{
	flushing:      {database: ", flush: 1s"},
	oldGateway:    {old: true},
	onPostgres:    {postgres: 1},
	oldOnPostgres: {postgres: 1, old: true},
}

// available returns the columns without those of programs that are not there.
func (o *options) available(columns ...string) []string {
	return slices.DeleteFunc(columns, func(column string) bool {
		return gatewayColumns[column].old && o.old == "" || column == haproxy && o.haproxy == ""
	})
}

// experiments returns all experiments. Each limit is the highest median that docs/benchmarks.md and docs/performance.md have had
// on a quiet machine, plus 5 to 25 % by the spread between runs: that of held memory differs by 2 %.
func experiments(o options) []experiment {
	readers, pacedEvents, lines, accounts := 200, 100, 50_000, 256
	some, many, every := 3_000, 10_000, 3*time.Second
	if o.short {
		readers, pacedEvents, lines, accounts = 20, 50, 2_000, 16
		some, many, every = 300, 1_000, 500*time.Millisecond
	}
	one, several := plain("1 KB plain, 1 connection", 1, 1<<10), plain("1 KB plain, 32 connections", 32, 1<<10)
	most, bursts := plain("1 KB plain, 256 connections", 256, 1<<10), streams(16, 200, 0)
	all := []experiment{
		{columns: o.available(reverseProxy, gateway, flushing, oldGateway, haproxy), measure: measureProxy, loads: []load{
			// On few connections hardly two requests share a flush of the disk, whose time and CPU time are those of the machine.
			one.with(goal{cpuPerRequest, flushing, 2.5, 0.85}, goal{addedMedian, flushing, 3, 1.1}),
			several.with(goal{cpuPerRequest, gateway, 1.4, 0.9}, goal{cpuPerRequest, flushing, 1.3, 0.85}),
			most,
			plain("100 KB plain, 8 connections", 8, 100<<10).with(goal{cpuPerRequest, flushing, 1.4, 1}),
			bursts.with(goal{cpuPerEvent, gateway, 1.6, 1.3}),
			streams(readers, pacedEvents, 20*time.Millisecond).with(goal{cpuPerEvent, gateway, 1.3, 1}),
			held(min(some, o.streams), every).with(goal{streamMemory, gateway, 0.6, 0.7}),
			held(min(many, o.streams), every).with(goal{streamMemory, gateway, 0.55, 0.7}),
		}},
		{name: "receipts", columns: []string{withoutReceipt, withReceipt}, measure: measureReceipt, loads: []load{
			one.with(goal{cpuPerRequest, withReceipt, 1.45, 1.1}),
			several.with(goal{cpuPerRequest, withReceipt, 1.45, 1.2}),
			bursts.with(goal{cpuPerRequest, withReceipt, 1.45, 1.2}),
		}},
		{name: "traces", columns: []string{untraced, traced}, measure: measureTraces, loads: []load{
			several.with(goal{cpuPerRequest, traced, 1.4, 1.25}), bursts.with(goal{cpuPerRequest, traced, 1.25, 1.15}),
		}},
		{name: "chat", columns: []string{completion, chatCompletion}, measure: measureChat, loads: []load{
			several.with(goal{cpuPerRequest, chatCompletion, 1.15, 1}),
			streams(32, 200, 0).with(goal{cpuPerRequest, chatCompletion, 1.15, 1}),
		}},
		{name: "a question", columns: []string{byEcho, byLoglikelihood}, measure: measureScoring, loads: scoringLoads()},
		{name: "batches", columns: []string{liveRequests, inBatch}, measure: measureBatch, once: true, loads: batchLoads(lines)},
		// By prefix, by the fewest requests in flight, and with one replica that caches as much as all.
		{name: "prefix", columns: o.available(byPrefix, byInFlight, oneReplica, oldGateway), measure: measurePrefix, once: true, loads: prefixLoads(o)},
	}
	if postgrestest.Binaries() != "" {
		hot := plain(fmt.Sprintf("1 KB plain, 256 connections to each of %d gateways", clusterSize), clusterSize*most.connections, 1<<10)
		hot.gateways = clusterSize
		all = append(all, experiment{
			name: "postgres", columns: o.available(onSQLite, onPostgres, oldOnPostgres), measure: measureLedger,
			loads: []load{one, several, several.spread(several.connections), most, most.spread(accounts)},
		}, experiment{name: "one account", columns: o.available(oldGateway, gateway), measure: measureLedger, loads: []load{hot}})
	}
	return all
}

func (l load) with(goals ...goal) load {
	l.goals = goals
	return l
}

func (l load) spread(accounts int) load {
	l.name, l.accounts = fmt.Sprintf("%s of %d accounts", l.name, accounts), accounts
	return l
}

func plain(name string, connections, size int) load {
	body := fmt.Appendf(nil, `{"model": %q, "prompt": %q, "max_tokens": 16}`, model, strings.Repeat("word ", size/5))
	return load{name: name, connections: connections, path: completionsPath, body: body}
}

func streams(connections, events int, pace time.Duration) load {
	at := ""
	if pace > 0 {
		at = fmt.Sprintf(" at %v", pace)
	}
	body := fmt.Appendf(nil, `{"model": %q, "prompt": "Once upon a time", "max_tokens": %d, "stream": true}`, model, events)
	name := fmt.Sprintf("streams of %d events%s, %d connections", events, at, connections)
	return load{name: name, connections: connections, events: events, pace: pace, path: completionsPath, body: body}
}

func held(connections int, every time.Duration) load {
	l := streams(connections, 4096, every)
	l.name, l.events, l.held = fmt.Sprintf("%d held streams, an event each %v", connections, every), anyEvents, true
	return l
}

// measureProxy sends a load through a proxy and, once in each round, to the upstream directly.
func measureProxy(ctx context.Context, b *testbed, l *load, column string) *outcome {
	if l.held {
		return measureHeld(ctx, b, l, column)
	}
	upstream := b.upstream(ctx, childOptions{Pace: l.pace})
	t := b.shared(column+upstream.address, func() *target { return b.startProxy(ctx, column, upstream.address) })
	if b.direct[l.name] == nil {
		b.direct[l.name] = upstream.measure(ctx, l, b.options.span)
	}
	s, direct := t.measure(ctx, l, b.options.span), b.direct[l.name]
	figures := []figure{{cpuPerRequest, s.perRequest(s.cpu)}}
	if l.events > 0 {
		figures = append(figures, figure{cpuPerEvent, s.perRequest(s.cpu) / float64(l.events)})
	}
	return &outcome{append(figures, figure{requestRate, s.rate()},
		figure{addedMedian, micros(s.quantile(0.5) - direct.quantile(0.5))},
		figure{addedP99, micros(s.quantile(0.99) - direct.quantile(0.99))}), s.counts}
}

const (
	// warmUpStreams precede the first reading of memory, so that it includes the program's own pages.
	warmUpStreams = 16
	// heldTimeout limits held streams.
	heldTimeout = 2 * time.Minute
)

// measureHeld measures the memory of streams that are open at the same time. It starts a proxy for them, since memory that a
// process has used before does not show as growth. How often rows are flushed makes no difference to it.
func measureHeld(ctx context.Context, b *testbed, l *load, column string) *outcome {
	if column == flushing {
		return nil
	}
	upstream := must(newReplayer(ctx, childOptions{Listen: "127.0.0.1:0", Pace: l.pace, Held: true}))
	serving, stop := context.WithCancel(ctx)
	var upstreams sync.WaitGroup
	defer upstreams.Wait()
	defer stop()
	upstreams.Go(func() { _ = upstream.serve(serving) }) // if it fails, so do the requests
	t := b.startProxy(ctx, column, upstream.listener.Addr().String())
	defer t.process.stop()
	once := func(connections int, body []byte) *sample {
		clients := t.clients(connections, l.events, heldTimeout)
		defer closeAll(clients)
		return send(ctx, clients, onceEach(connections, t.request(0, l.path, body)))
	}
	warmedUp := once(warmUpStreams, streams(1, 1, 0).body)
	before := t.process.memory()
	sent := make(chan *sample, 1)
	go func() { sent <- once(l.connections, l.body) }()
	limit := time.Now().Add(heldTimeout / 2) // streams that have failed do not begin
	for upstream.open.Load() < int64(l.connections) && time.Now().Before(limit) && wait.For(ctx, 10*time.Millisecond) {
	}
	wait.For(ctx, 2*l.pace)
	during := t.process.memory()
	close(upstream.release)
	s := <-sent
	check(ctx.Err())
	begun := s.counts.complete + s.counts.truncated
	if begun == 0 {
		check(s.counts.example)
	}
	warmedUp.counts.complete = 0
	s.counts.add(warmedUp.counts)
	return &outcome{[]figure{{streamMemory, (during - before) / float64(begun) / 1e3}}, s.counts}
}

// measureReceipt sends a load with or without the header that asks for a receipt, through one gateway.
func measureReceipt(ctx context.Context, b *testbed, l *load, column string) *outcome {
	asking := *b.behindGateway(ctx, gatewayOptions{sections: "receipts: {enabled: true}\n"}, childOptions{})
	if column == withReceipt {
		asking.header = "X-Acs-Receipt: true\r\n"
	}
	return cpuOutcome(asking.measure(ctx, l, b.options.span))
}

// measureTraces sends a load through a gateway that traces nothing, or every request, for a collector that takes all.
func measureTraces(ctx context.Context, b *testbed, l *load, column string) *outcome {
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer collector.Close()
	g := gatewayOptions{}
	if column == traced {
		g.sections = fmt.Sprintf("telemetry: {otlp: %q, sample: 1}\n", collector.URL)
	}
	t := b.startGateway(ctx, g, b.upstream(ctx, childOptions{}).address)
	defer t.process.stop()
	return cpuOutcome(t.measure(ctx, l, b.options.span))
}

// measureChat sends completions or chat completions of the same size through one gateway.
func measureChat(ctx context.Context, b *testbed, l *load, column string) *outcome {
	t := b.behindGateway(ctx, gatewayOptions{model: ", chat: true"}, childOptions{})
	sent := *l
	turn := strings.Repeat("word ", 1<<10/4/5) // a quarter of 1 KB
	text := fmt.Sprintf(`"prompt": %q`, strings.Repeat(turn, 4))
	if column == chatCompletion {
		var messages []string
		for _, role := range []string{"system", "user", "assistant", "user"} {
			messages = append(messages, fmt.Sprintf(`{"role": %q, "content": %q}`, role, turn))
		}
		text = fmt.Sprintf(`"messages": [%s]`, strings.Join(messages, ", "))
		sent.path = chatPath
		sent.events += min(l.events, 1) // the first event of a stream has the role
	}
	sent.body = fmt.Appendf(nil, `{"model": %q, %s, "max_tokens": %d, "stream": %v, "ignore_eos": true}`, model, text, max(l.events, 16), l.events > 0)
	return cpuOutcome(t.measure(ctx, &sent, b.options.span))
}

func cpuOutcome(s *sample) *outcome {
	return &outcome{[]figure{{cpuPerRequest, s.perRequest(s.cpu)}}, s.counts}
}

// clusterSize is the number of gateways on one database.
const clusterSize = 3

// measureLedger sends a load through a gateway, or several on one database, and takes what it costs PostgreSQL if the ledger is there.
func measureLedger(ctx context.Context, b *testbed, l *load, column string) *outcome {
	g := gatewayColumns[column]
	g.accounts, g.postgres = l.accounts, max(g.postgres, l.gateways)
	t := b.behindGateway(ctx, g, childOptions{})
	totals := func() (calls, settled float64) {
		for _, g := range t.gateways() {
			calls += scrape(ctx, g.admin, "basegate_ledger_calls_total ")
			settled += scrape(ctx, g.admin, `basegate_ledger_settlements_total{state="settled"} `)
		}
		return calls, settled
	}
	calls, settled := totals()
	s := t.measure(ctx, l, b.options.span)
	o := cpuOutcome(s)
	o.figures = append(o.figures, figure{requestRate, s.rate()}, figure{"latency, median, µs", micros(s.quantile(0.5))})
	if t.server != nil {
		callsAfter, settledAfter := totals()
		o.figures = append(o.figures, figure{"PostgreSQL's CPU per request, µs", s.perRequest(s.serverCPU)},
			figure{"calls per request", (callsAfter - calls) / max(settledAfter-settled, 1)})
	}
	return o
}
