// Bench measures what the gateway costs beside a plain httputil.ReverseProxy, and beside HAProxy if it is installed: it sends the
// same loads through each in turn, and takes CPU time and memory from /proc. It prints Markdown tables, and exits with 1 when the
// gateway truncated a stream or failed a request, with -check also when a figure is over its limit.
//
//	go run ./bench [-short] [-check] [-rounds N] [-span D] [-work REGEXP] [-basegate BINARY] [-old BINARY]
package main

import (
	"context"
	"encoding/json"
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

type options struct {
	basegate string // the gateway's binary
	old      string // another binary of it, measured in turns; empty: none
	haproxy  string // HAProxy's binary; empty if it is not installed
	version  string // of HAProxy
	check    bool
	short    bool
	rounds   int
	span     time.Duration  // of each measurement
	wanted   *regexp.Regexp // matches the names of the loads to measure
	streams  int            // the most streams that the limit of open files lets a proxy hold
}

// timeout limits the whole run.
const timeout = time.Hour

// children are the servers that this program runs in processes of their own, by their first argument.
var children = map[string]func(ctx context.Context, o childOptions) error{
	upstreamCommand:     serveUpstream,
	reverseProxyCommand: serveReverseProxy,
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
	if len(os.Args) == 3 && children[os.Args[1]] != nil {
		var o childOptions
		if err := json.Unmarshal([]byte(os.Args[2]), &o); err != nil {
			return fmt.Errorf("read the options of %s: %w", os.Args[1], err)
		}
		return children[os.Args[1]](ctx, o)
	}
	o, err := readOptions(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var results []*result
	var failures []error
	for _, e := range experiments(o) {
		e.loads = slices.DeleteFunc(e.loads, func(l load) bool { return !o.wanted.MatchString(e.title(&l)) })
		if len(e.loads) == 0 {
			continue
		}
		measured, err := e.run(ctx, o)
		if err != nil {
			failures = append(failures, err)
		}
		results = append(results, measured...)
	}
	if err := printResults(os.Stdout, o, results); err != nil {
		return fmt.Errorf("print tables: %w", err)
	}
	return errors.Join(append(failures, checkResults(results, o)...)...)
}

func readOptions(ctx context.Context) (o options, err error) {
	flag.BoolVar(&o.short, "short", false, "one round of 500ms and smaller loads, to see that everything works; limits are doubled")
	flag.IntVar(&o.rounds, "rounds", 3, "how many times each load is measured")
	flag.DurationVar(&o.span, "span", 3*time.Second, "duration of each measurement")
	flag.BoolVar(&o.check, "check", false, "exit with 1 when a figure is over its limit")
	flag.StringVar(&o.basegate, "basegate", "bin/basegate", "the gateway's binary")
	flag.StringVar(&o.old, "old", "", "another binary of the gateway, which is measured in turns with it")
	wanted := flag.String("work", "", "measure only loads whose name matches this regular expression, such as '^1 KB' or '^receipts'")
	flag.Parse()
	if o.short {
		o.rounds, o.span = 1, 500*time.Millisecond
	}
	if o.wanted, err = regexp.Compile(*wanted); err != nil {
		return o, fmt.Errorf("-work: %w", err)
	}
	o.haproxy, o.version = findHAProxy(ctx)
	o.streams = maxStreams(raiseFileLimit())
	return o, nil
}

// childOptions are the options of a child, its second argument as JSON.
type childOptions struct {
	Listen string        // host:port
	Target string        // host:port to forward to
	Pace   time.Duration // between two events of a stream
	Delay  time.Duration // before a response
	Places int           // requests that the upstream runs at once; 0: any number
	Held   bool          // the upstream holds streams of several tokens until their release
}
