package receipt

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"basegate/budget"
	"basegate/database"
	"basegate/internal/wait"
	"basegate/proxy/stream"
)

// Builder makes the entry of an answer that is not whole yet. It must get every byte of the answer, or the payload of every
// event.
type Builder struct {
	log    *Log
	nonce  Hash
	hash   hash.Hash // of the nonce and the answer
	events bool      // a payload has been written
	awaits bool      // it is counted in Log.streams
}

// NewBuilder begins the entry of an answer. Close must follow that of a stream, which will call Entry.Receipt.
func (l *Log) NewBuilder(stream bool) *Builder {
	if stream {
		l.streams.Add(1)
	}
	var nonce Hash
	rand.Read(nonce[:]) // never fails
	return &Builder{log: l, nonce: nonce, hash: newCIDHash(nonce), awaits: stream}
}

// Close says that no entry of a stream is to be waited for any longer. It may be called again.
func (b *Builder) Close() {
	if b.awaits {
		b.awaits = false
		b.log.streams.Add(-1)
	}
}

// Write adds bytes of a plain answer.
func (b *Builder) Write(p []byte) { b.hash.Write(p) }

var lineFeed = []byte{'\n'}

// WriteEvents adds the payloads of events of a stream, as the client receives them.
func (b *Builder) WriteEvents(events []byte) {
	for payload := range stream.Payloads(events) {
		if b.events {
			b.hash.Write(lineFeed)
		}
		b.events = true
		b.hash.Write(payload)
	}
}

// Entry is the entry of a whole answer. The answer may be finished after the transaction that inserts Pending is committed
// and Confirm has returned nil, or after Write has.
type Entry struct {
	builder *Builder
	key     string
	leaf    Hash
	record  Record
	after   int64 // the size of a tree without the entry
}

// Seal makes the entry of the answer. The caller gives what it knows of the record; Seal adds the rest: version, time and
// addresses. input is the body of the request as the client sent it, and key is the id of its key.
func (b *Builder) Seal(r Record, key string, input []byte) (*Entry, error) {
	r.Version, r.Time = recordVersion, time.Now().UTC().Format(time.RFC3339Nano)
	r.KeyHash = hashOfKeyID(key)
	r.InputCID, r.OutputCID = cidOf(b.nonce, input), formatCID(b.hash.Sum(nil))
	var err error
	if r.text, err = r.encode(); err != nil {
		return nil, err
	}
	return &Entry{builder: b, key: key, leaf: Hash(tlog.RecordHash(r.text)), record: r, after: b.log.Size()}, nil
}

// Pending returns the entry in the form in which a settlement inserts it, see budget.Outcome.
func (e *Entry) Pending() []byte { return slices.Concat(e.leaf[:], e.builder.nonce[:], e.record.text) }

// Write inserts the pending entry in a transaction of its own and confirms it: the answer is one without a settlement.
func (e *Entry) Write(ctx context.Context) error {
	err := e.builder.log.db.WriteGrouped(ctx, func(tx database.Tx) error { return budget.InsertReceipt(ctx, tx, e.key, e.Pending()) })
	if err != nil {
		return fmt.Errorf("write the receipt: %w", err)
	}
	return e.Confirm(ctx)
}

// Confirm waits until the entry, whose transaction has been committed, survives a power failure.
func (e *Entry) Confirm(ctx context.Context) error {
	if err := e.builder.log.db.Flush(ctx); err != nil {
		return fmt.Errorf("flush the receipt: %w", err)
	}
	return nil
}

// AwaitRound waits until the sequencer has made a round with the transaction that inserts the entry of a stream, which is queued: streams
// that end within pace of each other then share a transaction, and each is woken once. It returns after twice that at the latest.
func (e *Entry) AwaitRound(ctx context.Context) {
	l := e.builder.log
	round := *l.round.Load()
	e.builder.Close()
	wait.Wake(l.wake)
	ctx, cancel := context.WithTimeout(ctx, 2*pace)
	defer cancel()
	select {
	case <-round:
	case <-ctx.Done():
	}
}

// LeafHash returns the hash by which GET /receipts/{leaf hash} finds the receipt.
func (e *Entry) LeafHash() Hash { return e.leaf }

// OnchainData returns what an answer carries of the receipt.
func (e *Entry) OnchainData() OnchainData {
	return newOnchainData(&e.record, e.leaf, keyID(e.builder.log.key.verifier))
}

// Receipt returns the whole receipt, nonce included. It waits until the entry is in a signed tree; if that takes longer than
// two seconds, or fails, or ctx ends, the receipt has no proof, and GET /receipts/{leaf hash} gives it later.
func (e *Entry) Receipt(ctx context.Context) *Receipt {
	e.builder.Close()
	r, _, err := e.builder.log.prove(ctx, e.leaf, e.after)
	if err != nil { // the sequencer tries again, and logs its failure
		r = &Receipt{Object: objectName, LeafHash: e.leaf, Log: e.builder.log.key.vkey}
	}
	r.Entry, r.Nonce = &e.record, &e.builder.nonce
	return r
}
