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
}

// onTop returns what a receipt costs in a workload, and false if it was not measured.
func (f *receiptFigures) onTop(id string) (time.Duration, bool) {
	i := slices.Index(f.ids, id)
	if i < 0 {
		return 0, false
	}
	return f.on[i] - f.off[i], true
}

// String returns a line for each workload.
func (f *receiptFigures) String() string {
	text := strings.Builder{}
	text.WriteString("receipts, CPU per request")
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
	off, _, err := b.startGatewayOf(ctx, gatewayOptions{
		name: "receipts", program: o.programs.basegate, concurrency: unlimited, sections: "receipts: {enabled: true}\n",
	})
	if err != nil {
		return nil, err
	}
	on := off
	on.header = receiptHeader
	f = &receiptFigures{}
	for _, w := range workloads(o.short) {
		if w.id != plainOne && w.id != plainSome && w.id != burstStreams {
			continue
		}
		var times [2][]time.Duration
		for range o.rounds {
			for i, t := range []target{off, on} {
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
		slices.Sort(times[0])
		slices.Sort(times[1])
		f.ids, f.workloads = append(f.ids, w.id), append(f.workloads, w.name)
		f.off, f.on = append(f.off, times[0][len(times[0])/2]), append(f.on, times[1][len(times[1])/2])
	}
	return f, nil
}
