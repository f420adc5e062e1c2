//go:build e2e

package e2e_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// startedBatch creates a batch at one of two gateways, and returns which of them runs it once some lines have ended. Others hang
// until the mock's faults are cleared.
func startedBatch(t *testing.T, first, second *gateway, mock *mockvllm.Process, file string) (id string, runner, other *gateway) {
	t.Helper()
	holdAfter(mock, 200)
	id = first.createBatch(first.secret, file)
	poll.Until(t, "some lines have ended", func() bool { return second.batch(first.secret, id).Get("request_counts.completed").Int() > 50 })
	const running = `basegate_batch_lines{state="running"}`
	var isFirst bool
	poll.Until(t, "a gateway runs lines", func() bool { isFirst = first.metric(running) > 0; return isFirst || second.metric(running) > 0 })
	if isFirst {
		return id, first, second
	}
	return id, second, first
}

// awaitEnd waits until a batch has a status, longer than it takes to declare a gateway dead.
func (g *gateway) awaitEnd(id, status string) (b gjson.Result) {
	g.t.Helper()
	poll.Until(g.t, "the batch is "+status, func() bool {
		b = g.batch(g.secret, id)
		return b.Get("status").Str == status
	})
	return b
}

func TestBatchOfAKilledGatewayIsFinishedByAnother(t *testing.T) {
	t.Parallel() // it waits for the end of leases
	first, second, mock := startTwo(t, postgrestest.Shared(t), settings{extra: "batches: {per_backend: 16}"}, mockvllm.Options{TokenDelay: 2 * time.Millisecond})
	file, ids := batchLines(2_000)
	id, runner, other := startedBatch(t, first, second, mock, file)
	runner.kill()
	mock.ClearFaults()
	b := other.awaitEnd(id, "completed")
	output, failures := other.checkResults(first.secret, b, ids)
	if len(failures) > 0 {
		t.Errorf("%d lines have failed", len(failures))
	}
	other.checkCharges(output)
}

func TestBatchOfADrainedGatewayGoesOnAtAnother(t *testing.T) {
	t.Parallel() // it waits
	first, second, mock := startTwo(t, postgrestest.Shared(t), settings{extra: "batches: {per_backend: 8}"}, mockvllm.Options{TokenDelay: 20 * time.Millisecond})
	file, ids := batchLines(600)
	id, runner, other := startedBatch(t, first, second, mock, file)
	runner.signal(syscall.SIGTERM)
	mock.ClearFaults()
	<-runner.exited
	output, _ := other.checkResults(first.secret, other.awaitEnd(id, "completed"), ids)
	other.checkCharges(output)
}
