package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// experiment is a set of loads, each of which is measured in each column in turn, round by round, so that other activity on
// the machine affects all columns alike.
type experiment struct {
	name    string   // before the names of its loads; empty: none
	columns []string // of the table; ratios refer to the first
	loads   []load
	once    bool // measured in one round only
	// measure measures a load in a column. It returns nil for a column in which the load is not measured.
	measure func(ctx context.Context, b *testbed, l *load, column string) *outcome
}

// outcome is what one load had in one column in one round.
type outcome struct {
	figures []figure
	counts  counts
}

type figure struct {
	measure string
	value   float64
}

func (e *experiment) title(l *load) string {
	if e.name == "" {
		return l.name
	}
	return e.name + ": " + l.name
}

// abortError is what check panics with.
type abortError struct{ error }

// check ends the experiment with an error, if there is one.
func check(err error) {
	if err != nil {
		panic(abortError{err})
	}
}

// must returns a value, or ends the experiment with an error.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// run measures all loads. An error ends it with the results so far.
func (e *experiment) run(ctx context.Context, o options) (results []*result, err error) {
	b, err := newTestbed(o)
	if err != nil {
		return nil, err
	}
	at := "" // what is measured
	defer func() {
		reason := recover()
		if a, ok := reason.(abortError); ok {
			err = fmt.Errorf("%s: %w", at, a.error)
		} else if reason != nil {
			panic(reason)
		}
		err = errors.Join(err, b.close())
	}()
	for i := range e.loads {
		l := &e.loads[i]
		results = append(results, &result{
			title: e.title(l), load: l, columns: e.columns, counts: map[string]counts{}, values: map[string]map[string][]float64{},
		})
	}
	rounds := o.rounds
	if e.once {
		rounds = 1
	}
	for round := range rounds {
		b.direct = map[string]*sample{}
		for _, r := range results {
			for i := range e.columns {
				column := e.columns[(i+round)%len(e.columns)] // each round begins with another one
				at = r.title + ", " + column
				fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, at)
				if got := e.measure(ctx, b, r.load, column); got != nil {
					r.add(column, got)
				}
			}
		}
	}
	return results, nil
}

// result holds what all rounds of a load had.
type result struct {
	title    string
	load     *load
	columns  []string
	measures []string                        // in the order of their first figure
	values   map[string]map[string][]float64 // by measure and column, in the order of the rounds
	counts   map[string]counts               // by column, of all rounds
}

func (r *result) add(column string, o *outcome) {
	for _, f := range o.figures {
		if r.values[f.measure] == nil {
			r.values[f.measure] = map[string][]float64{}
			r.measures = append(r.measures, f.measure)
		}
		r.values[f.measure][column] = append(r.values[f.measure][column], f.value)
	}
	sum := r.counts[column]
	sum.add(o.counts)
	r.counts[column] = sum
}

// ratios returns a measure of a column as ratios to the first column, round by round, since the load of the machine varies
// more between rounds than within one. A zero or negative value, as noise can make a small latency, has no ratio.
func (r *result) ratios(measure, column string) summary {
	bases := r.values[measure][r.columns[0]]
	var all []float64
	for round, value := range r.values[measure][column] {
		if round < len(bases) && bases[round] > 0 && value > 0 {
			all = append(all, value/bases[round])
		}
	}
	return summarize(all)
}
