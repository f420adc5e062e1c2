// Bench measures what the gateway costs beside a bare httputil.ReverseProxy: the same work through both, in processes
// of their own, in turns, and CPU time by the kernel's account. It asserts no figure, since machines differ, but it
// exits with 1 when the gateway cut a stream or failed a request.
//
//	go run ./bench [-short] [-rounds N] [-work REGEXP] [-markdown docs/benchmarks.md]
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
	basegate string
	markdown string
	rounds   int
	measured time.Duration // each work, target and round
	limit    time.Duration // everything
	works    []work
}

var errUnsound = errors.New("the gateway cut a stream or failed a request, see the table")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		err = serveBare(ctx, os.Args[2:])
	} else {
		var o options
		if o, err = readOptions(); err == nil {
			err = bench(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func readOptions() (options, error) {
	o := options{measured: 3 * time.Second, limit: 5 * time.Minute}
	short := flag.Bool("short", false, "one short round, to see that everything works")
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured; 1 with -short")
	flag.StringVar(&o.markdown, "markdown", "", "also write the table to this file, as Markdown")
	flag.StringVar(&o.basegate, "basegate", "bin/basegate", "the gateway's binary")
	only := flag.String("work", "", "only the works whose name matches this regular expression, such as '^1 KB'")
	flag.Parse()
	if *short {
		o.rounds, o.measured, o.limit = 1, 1500*time.Millisecond, 90*time.Second
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("-work: %w", err)
	}
	o.works = slices.DeleteFunc(works(), func(w work) bool { return !wanted.MatchString(w.name) })
	return o, nil
}

// bench starts the processes, measures, and reports.
func bench(ctx context.Context, o options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	s, err := newStage(ctx, o.basegate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r, err := measureAll(ctx, s, o)
	if err != nil {
		return err
	}
	if r.flush, err = flushTime(s.dir); err != nil {
		return err
	}
	if r.waiting, err = measureWaiting(ctx, s); err != nil {
		return fmt.Errorf("measure waiting requests: %w", err)
	}
	if err := r.print(os.Stdout); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if o.markdown != "" {
		if err := r.writeMarkdown(o.markdown); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	if !r.sound() {
		return errUnsound
	}
	return nil
}

// measureAll sends every work to every target in turns, so that what else the machine does falls on all alike.
func measureAll(ctx context.Context, s *stage, o options) (*report, error) {
	r := newReport(o)
	for round := range o.rounds {
		for i, w := range o.works {
			for _, t := range s.targets() {
				fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, o.rounds, w.name, t.name)
				m, err := measure(ctx, t, w, o.measured)
				if err != nil {
					return nil, fmt.Errorf("measure %s: %w", t.name, err)
				}
				r.add(i, t.name, m)
			}
		}
	}
	return r, nil
}
