// Bench measures what the gateway costs beside a bare httputil.ReverseProxy, and beside nginx and HAProxy where they are
// installed: the same work through all, in processes of their own, in turns, and CPU time and memory by the kernel's
// account. It exits with 1 when the gateway cut a stream or failed a request. With -check it also does when a ratio to
// the ReverseProxy is over its goal.
//
//	go run ./bench [-short] [-check] [-rounds N] [-span D] [-work REGEXP] [-markdown docs/benchmarks.md]
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

// options are what the command line says.
type options struct {
	programs     programs
	markdown     string
	check        bool
	rounds       int
	span         time.Duration // of each measurement
	timeout      time.Duration // of the whole run
	workloads    []workload
	holds        []holdWorkload
	queuedMemory bool // requests that wait are measured
}

var (
	errIncomplete = errors.New("the gateway cut a stream or failed a request, see the table")
	errOverLimit  = errors.New("goals missed")
)

func main() {
	// A broken pipe behind stdout is no reason to leave the children behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == reverseProxyCommand:
		err = serveChild(ctx, os.Args[2:], serveReverseProxy)
	case len(os.Args) > 1 && os.Args[1] == byteCopyCommand:
		err = serveChild(ctx, os.Args[2:], serveByteCopy)
	default:
		var o options
		if o, err = readOptions(ctx); err == nil {
			err = bench(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// serveChild is what this program does when it has started itself, to have something to compare with.
func serveChild(ctx context.Context, args []string, serve func(ctx context.Context, listen, target string) error) error {
	flags := flag.NewFlagSet("child", flag.ExitOnError)
	listen := flags.String("listen", "127.0.0.1:0", "host:port to listen on")
	target := flags.String("target", "", "host:port to forward to")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	return serve(ctx, *listen, *target)
}

func readOptions(ctx context.Context) (options, error) {
	o := options{timeout: time.Hour}
	short := flag.Bool("short", false, "one short round of less work, to see that everything works")
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured; 1 with -short")
	flag.DurationVar(&o.span, "span", 3*time.Second, "how long each work is measured each time; 500ms with -short")
	flag.BoolVar(&o.check, "check", false, "exit with 1 when a goal is missed")
	flag.StringVar(&o.markdown, "markdown", "", "also write the table to this file, as Markdown")
	basegate := flag.String("basegate", "bin/basegate", "the gateway's binary")
	only := flag.String("work", "", "only the works whose name matches this regular expression, such as '^1 KB'")
	flag.Parse()
	if *short {
		o.rounds, o.span, o.timeout = 1, 500*time.Millisecond, 3*time.Minute
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("-work: %w", err)
	}
	o.programs = findPrograms(ctx, *basegate)
	o.workloads = slices.DeleteFunc(workloads(*short), func(w workload) bool { return !wanted.MatchString(w.name) })
	o.holds = slices.DeleteFunc(holds(*short, o.programs.descriptors), func(h holdWorkload) bool { return !wanted.MatchString(h.name()) })
	o.queuedMemory = wanted.MatchString("waiting requests")
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
	var waitingErr error // the table is worth printing without
	if o.queuedMemory {
		if r.queuedMemory, waitingErr = measureQueued(ctx, o.programs); waitingErr != nil {
			waitingErr = fmt.Errorf("measure waiting requests: %w", waitingErr)
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
	return errors.Join(r.verdict(), waitingErr)
}

// measureAll sends every work to every target in turns, so that what else the machine does falls on all alike.
func measureAll(ctx context.Context, o options) (r *report, err error) {
	r = newReport(o)
	stages := map[time.Duration]*testbed{} // by the pace of their upstream
	defer func() {
		for _, s := range stages {
			err = errors.Join(err, s.close())
		}
	}()
	for _, w := range o.workloads {
		if stages[w.pace] == nil {
			s, err := newLoadTestbed(ctx, o.programs, w.pace)
			if err != nil {
				return nil, err
			}
			stages[w.pace] = s
		}
	}
	for round := range o.rounds {
		for _, w := range o.workloads {
			if err := r.load(ctx, round, w, stages[w.pace].targets); err != nil {
				return nil, err
			}
		}
		for _, h := range o.holds {
			if err := r.hold(ctx, round, h); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// load measures one work at every target; each round begins with another one.
func (r *report) load(ctx context.Context, round int, w workload, targets []target) error {
	for i := range targets {
		t := targets[(i+round)%len(targets)]
		fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, r.options.rounds, w.name, t.name)
		run := measure
		if w.id == plainOne && t.name == gateway {
			run = r.measureFlushing
		}
		m, err := run(ctx, t, w, r.options.span)
		if err != nil {
			return fmt.Errorf("measure %s: %w", t.name, err)
		}
		r.loads.add(w.id, t.name, m)
	}
	return nil
}

// measureFlushing also times the disk, before and after. Of the two it believes the lesser, since what else writes would
// make the ledger's promise look dearer than it is.
func (r *report) measureFlushing(ctx context.Context, t target, w workload, span time.Duration) (*loadResult, error) {
	before, err := flushTime()
	if err != nil {
		return nil, err
	}
	m, err := measure(ctx, t, w, span)
	if err != nil {
		return nil, err
	}
	after, err := flushTime()
	r.flushes = append(r.flushes, min(before, after))
	return m, err
}

// hold measures one hold at every proxy; each round begins with another one.
func (r *report) hold(ctx context.Context, round int, h holdWorkload) error {
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
