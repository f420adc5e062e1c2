// Bench measures what the gateway costs beside a plain httputil.ReverseProxy, and beside nginx and HAProxy if they are
// installed. It sends the same load through each of them in turn, each in a process of its own, and takes CPU time and
// memory from /proc. It exits with 1 when the gateway truncated a stream or failed a request. With -check it also exits
// with 1 when a ratio to the ReverseProxy is over its limit.
//
//	go run ./bench [-short] [-check] [-rounds N] [-span D] [-work REGEXP] [-old BINARY] [-markdown docs/benchmarks.md]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// options are the parsed command line.
type options struct {
	programs  programs
	markdown  string
	check     bool
	rounds    int
	span      time.Duration // of each measurement
	timeout   time.Duration // of the whole run
	workloads []workload
	holds     []holdWorkload
	queued    bool // measure queued requests
	batches   bool // measure a batch
	prefix    bool // measure routing by prefix
	receipts  bool // measure receipts
	postgres  bool // measure a gateway on PostgreSQL
	chat      bool // measure chat completions beside completions
	short     bool

	limitFactor float64 // multiplies the limits of the goals
}

// shortLimitFactor allows for the noise of a short run: its one round of streams takes a few ticks of CPU time.
const shortLimitFactor = 2

var (
	errIncomplete = errors.New("the gateway truncated a stream or failed a request, see the table")
	errOverLimit  = errors.New("over the limit or not measured")
)

// children are the servers that this program runs in processes of their own, by their first argument.
var children = map[string]func(ctx context.Context, f childFlags) error{
	upstreamCommand:     serveUpstream,
	reverseProxyCommand: serveReverseProxy,
	byteCopyCommand:     serveByteCopy,
}

func main() {
	// A write to a closed stdout or socket then returns EPIPE, so that neither ends a server of the benchmark, nor the
	// benchmark before it has stopped its children.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		f, err := parseChildFlags(os.Args[2:])
		if err != nil {
			return err
		}
		return children[os.Args[1]](ctx, f)
	}
	o, err := readOptions(ctx)
	if err != nil {
		return err
	}
	return bench(ctx, o)
}

// childFlags are the flags of the children.
type childFlags struct {
	listen, target string        // host:port
	pace           time.Duration // between two events of a stream
	places         int           // requests that the upstream runs at once; 0 means any number
	delay          time.Duration // of a response
}

func parseChildFlags(args []string) (childFlags, error) {
	var f childFlags
	flags := flag.NewFlagSet("child", flag.ExitOnError)
	flags.StringVar(&f.listen, "listen", "127.0.0.1:0", "host:port to listen on")
	flags.StringVar(&f.target, "target", "", "host:port to forward to")
	flags.DurationVar(&f.pace, "pace", 0, "time between two events of a stream")
	flags.IntVar(&f.places, "places", 0, "requests that run at once; 0: any number")
	flags.DurationVar(&f.delay, "delay", 0, "time before a response")
	if err := flags.Parse(args); err != nil {
		return f, fmt.Errorf("read flags: %w", err)
	}
	return f, nil
}

func readOptions(ctx context.Context) (options, error) {
	o := options{timeout: time.Hour, limitFactor: 1}
	short := flag.Bool("short", false, "one short round of smaller loads, to see that everything works; limits are doubled")
	flag.IntVar(&o.rounds, "rounds", 3, "how many times everything is measured; 1 with -short")
	flag.DurationVar(&o.span, "span", 3*time.Second, "duration of each measurement; 500ms with -short")
	flag.BoolVar(&o.check, "check", false, "exit with 1 when a ratio is over its limit")
	flag.StringVar(&o.markdown, "markdown", "", "also write the table to this file, as Markdown")
	basegate := flag.String("basegate", "bin/basegate", "the gateway's binary")
	old := flag.String("old", "", "another binary of the gateway, which is measured in turns with it")
	only := flag.String("work", "", "measure only loads whose name matches this regular expression, such as '^1 KB'")
	flag.Parse()
	if *short {
		o.rounds, o.span, o.timeout, o.limitFactor = 1, 500*time.Millisecond, 30*time.Minute, shortLimitFactor
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("-work: %w", err)
	}
	o.programs = findPrograms(ctx, *basegate)
	o.programs.old = *old
	o.workloads = slices.DeleteFunc(workloads(*short), func(w workload) bool { return !wanted.MatchString(w.name) })
	o.holds = slices.DeleteFunc(holds(*short, o.programs.descriptors), func(h holdWorkload) bool { return !wanted.MatchString(h.name()) })
	o.queued = wanted.MatchString("queued requests")
	o.short = *short
	o.batches = wanted.MatchString("batches")
	o.prefix = wanted.MatchString("prefix")
	o.receipts = wanted.MatchString("receipts")
	o.postgres = wanted.MatchString("postgres")
	o.chat = wanted.MatchString("chat")
	return o, nil
}

// bench measures and reports.
func bench(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r, err := measureAll(ctx, o)
	if err != nil {
		return err
	}
	var queuedErr error // printed after the table
	if o.queued {
		if r.queued, queuedErr = measureQueued(ctx, o.programs); queuedErr != nil {
			queuedErr = fmt.Errorf("measure queued requests: %w", queuedErr)
		}
	}
	var batchErr error
	if o.batches {
		if r.batch, batchErr = measureBatch(ctx, o.programs, o.short); batchErr != nil {
			batchErr = fmt.Errorf("measure a batch: %w", batchErr)
		}
	}
	var prefixErr error
	if o.prefix {
		if r.prefix, prefixErr = measurePrefix(ctx, o.programs, o.short); prefixErr != nil {
			prefixErr = fmt.Errorf("measure routing by prefix: %w", prefixErr)
		}
	}
	var receiptErr error
	if o.receipts {
		if r.receipts, receiptErr = measureReceipts(ctx, o); receiptErr != nil {
			receiptErr = fmt.Errorf("measure receipts: %w", receiptErr)
		}
	}
	var postgresErr error
	if o.postgres {
		if r.postgres, postgresErr = measurePostgres(ctx, o); postgresErr != nil {
			postgresErr = fmt.Errorf("measure PostgreSQL: %w", postgresErr)
		}
	}
	var chatErr error
	if o.chat {
		if r.chat, chatErr = measureChat(ctx, o); chatErr != nil {
			chatErr = fmt.Errorf("measure chat completions: %w", chatErr)
		}
	}
	if err := r.print(os.Stdout); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if o.markdown != "" {
		if err := r.writeMarkdown(o.markdown); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return errors.Join(r.check(), queuedErr, batchErr, prefixErr, receiptErr, postgresErr, chatErr)
}

// measureAll sends every load to every target in turn, so that other activity on the machine affects all alike.
func measureAll(ctx context.Context, o options) (r *report, err error) {
	r = newReport(o)
	testbeds := map[time.Duration]*testbed{} // by the pace of their upstream
	defer func() {
		for _, b := range testbeds {
			err = errors.Join(err, b.close())
		}
	}()
	for _, w := range o.workloads {
		if testbeds[w.pace] == nil {
			b, err := newLoadTestbed(ctx, o.programs, w.pace)
			if err != nil {
				return nil, err
			}
			testbeds[w.pace] = b
		}
	}
	for round := range o.rounds {
		for _, w := range o.workloads {
			if err := r.runLoad(ctx, round, w, testbeds[w.pace].targets); err != nil {
				return nil, err
			}
		}
		for _, h := range o.holds {
			if err := r.runHold(ctx, round, h); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// runLoad measures one load at every target; each round begins with a different target.
func (r *report) runLoad(ctx context.Context, round int, w workload, targets []target) error {
	for i := range targets {
		t := targets[(i+round)%len(targets)]
		fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, r.options.rounds, w.name, t.name)
		measureOnce := measure
		if w.id == plainOne && t.name == gateway {
			measureOnce = r.measureFlushing
		}
		m, err := measureOnce(ctx, t, w, r.options.span)
		if err != nil {
			return fmt.Errorf("measure %s: %w", t.name, err)
		}
		r.loads.add(w.id, t.name, m)
	}
	return nil
}

// measureFlushing also measures a disk flush before and after the load. It keeps the lower of the two, since other writes
// on the machine inflate the time, and the gateway's ratios are taken less the flush.
func (r *report) measureFlushing(ctx context.Context, t target, w workload, span time.Duration) (*loadResult, error) {
	before, err := measureFlush()
	if err != nil {
		return nil, err
	}
	m, err := measure(ctx, t, w, span)
	if err != nil {
		return nil, err
	}
	after, err := measureFlush()
	r.flushes = append(r.flushes, before.lower(after))
	return m, err
}

// runHold measures one set of held streams at every proxy; each round begins with a different proxy.
func (r *report) runHold(ctx context.Context, round int, h holdWorkload) error {
	proxies := r.options.programs.proxies()
	for i := range proxies {
		name := proxies[(i+round)%len(proxies)]
		fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, r.options.rounds, h.name(), name)
		m, err := measureHold(ctx, r.options.programs, name, h)
		if err != nil {
			return fmt.Errorf("hold streams at %s: %w", name, err)
		}
		r.holds.add(h.id, name, m)
	}
	return nil
}
