package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// receiptFigures are the CPU times of a request without and with a receipt at the same gateway, by workload.
type receiptFigures struct {
	ids, workloads []string
	off, on        []time.Duration // medians of the rounds
	old            *receiptFigures // of the other binary, measured in turns; nil if there is none
}

// onTop returns what a receipt costs in a workload, and false if it was not measured.
func (f *receiptFigures) onTop(id string) (time.Duration, bool) {
	i := slices.Index(f.ids, id)
	if i < 0 {
		return 0, false
	}
	return f.on[i] - f.off[i], true
}

// String returns a line for each gateway.
func (f *receiptFigures) String() string {
	text := "receipts, CPU per request" + f.list()
	if f.old != nil {
		text += ".\nreceipts of the old binary" + f.old.list()
	}
	return text
}

func (f *receiptFigures) list() string {
	text := strings.Builder{}
	for i, w := range f.workloads {
		fmt.Fprintf(&text, "; %s: %v without, %v with, %v on top", w, f.off[i], f.on[i], f.on[i]-f.off[i])
	}
	return text.String()
}

// receiptHeader asks for a receipt.
const receiptHeader = "X-Acs-Receipt: true\r\n"

var errReceiptLoad = errors.New("requests failed")

// measureReceipts sends plain requests and bursts of events, with and without the header in alternation.
func measureReceipts(ctx context.Context, o options) (f *receiptFigures, err error) {
	b, err := newTestbed(o.programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.addUpstream(ctx); err != nil {
		return nil, err
	}
	f = &receiptFigures{}
	figures := []*receiptFigures{f}
	targets, err := b.addReceiptTargets(ctx, "receipts", o.programs.basegate)
	if err == nil && o.programs.old != "" {
		var old []target
		old, err = b.addReceiptTargets(ctx, "old-receipts", o.programs.old)
		targets, f.old = append(targets, old...), &receiptFigures{}
		figures = append(figures, f.old)
	}
	if err != nil {
		return nil, err
	}
	for _, w := range workloads(o.short) {
		if w.id != plainOne && w.id != plainSome && w.id != burstStreams {
			continue
		}
		times, err := measureInTurns(ctx, o, w, targets)
		if err != nil {
			return nil, err
		}
		for i, f := range figures {
			f.ids, f.workloads = append(f.ids, w.id), append(f.workloads, w.name)
			f.off, f.on = append(f.off, times[2*i]), append(f.on, times[2*i+1])
		}
	}
	return f, nil
}

// addReceiptTargets starts a gateway with receipts, and returns it as two targets: requests without and with a receipt.
func (b *testbed) addReceiptTargets(ctx context.Context, name, program string) ([]target, error) {
	off, _, err := b.startGatewayOf(ctx, gatewayOptions{
		name: name, program: program, concurrency: unlimited, sections: "receipts: {enabled: true}\n",
	})
	if err != nil {
		return nil, err
	}
	on := off
	on.header = receiptHeader
	return []target{off, on}, nil
}

// measureInTurns returns the CPU time of a request at each target, as the median of the rounds.
func measureInTurns(ctx context.Context, o options, w workload, targets []target) ([]time.Duration, error) {
	times := make([][]time.Duration, len(targets))
	for range o.rounds {
		for i, t := range targets {
			m, err := measure(ctx, t, w, o.span)
			if err != nil {
				return nil, err
			}
			if m.complete == 0 || m.failed+m.truncated > 0 {
				return nil, fmt.Errorf("%s: %w: %w", w.name, errReceiptLoad, m.exampleErr)
			}
			times[i] = append(times[i], (m.cpu / time.Duration(m.complete)).Round(time.Microsecond/10))
		}
	}
	medians := make([]time.Duration, len(targets))
	for i, rounds := range times {
		medians[i] = median(rounds)
	}
	return medians, nil
}
