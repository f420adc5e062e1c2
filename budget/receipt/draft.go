package receipt

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
)

// Draft is a receipt whose answer is not whole yet. Its Answer must get every byte of the answer, or the payload of every
// event.
type Draft struct {
	Answer

	log     *Log
	nonce   Hash
	counted bool // among the open streams of the gate
}

// NewDraft begins the receipt of a plain answer.
func (l *Log) NewDraft() *Draft {
	nonce := newNonce()
	return &Draft{Answer: Answer{hash: newCIDHash(nonce)}, log: l, nonce: nonce}
}

// NewStreamDraft begins the receipt of a stream, which groups of streams wait for until the Draft is closed.
func (l *Log) NewStreamDraft() *Draft {
	d := l.NewDraft()
	l.gate.begin()
	d.counted = true
	return d
}

// Close ends the receipt, whether its answer is whole or not. It may be called more than once.
func (d *Draft) Close() {
	if d.counted {
		d.counted = false
		d.log.gate.end()
	}
}

// Sealed is the receipt of a whole answer. The answer may be finished after the transaction with Insert is on disk and
// Confirm has returned nil, or after Write has.
type Sealed struct {
	draft *Draft
	log   *Log
	key   string
	leaf  Hash
	nonce Hash
	entry Entry
	text  []byte
	seq   int64 // set by Insert

	misplaced bool   // the entry is not the next one of the log
	group     *group // of a stream that has joined one
	leads     bool   // the group, until leave
}

// Seal makes the entry of the answer. The caller gives what it knows of the entry; Seal adds the rest: version, time and
// addresses. input is the body of the request as the client sent it, and key is the id of its key.
func (d *Draft) Seal(e Entry, key string, input []byte) (*Sealed, error) {
	e.Version, e.Time = entryVersion, time.Now().UTC().Format(time.RFC3339Nano)
	e.KeyHash = hashOfKeyID(key)
	e.InputCID, e.OutputCID = cidOf(d.nonce, input), formatCID(d.hash.Sum(nil))
	text, err := e.encode()
	if err != nil {
		return nil, err
	}
	return &Sealed{draft: d, log: d.log, key: key, leaf: Hash(tlog.RecordHash(text)), nonce: d.nonce, entry: e, text: text}, nil
}

// Join makes the stream one of those that end within 10 ms of each other, which share a transaction and a tree head. It is
// called before the write with Insert is queued, and by the streams of NewStreamDraft alone: only they wait for a tree head. It
// waits if the stream leads the others, but not if it ends alone. The caller calls leave when the receipt is there, or cannot be.
func (s *Sealed) Join(ctx context.Context) (leave func()) {
	s.group, s.leads = s.log.gate.join(ctx)
	if s.log.shared { // another gateway may sign
		s.leave()
		s.draft.Close()
		<-s.group.done
	}
	return s.leave
}

// leave lets the others of the group go on, once, if the stream leads it.
func (s *Sealed) leave() {
	if s.leads {
		s.leads = false
		close(s.group.done)
	}
}

// AwaitGroup waits until the leader of the group has committed and signed for all. It is called when the write with Insert is
// queued, which may still be uncommitted afterwards.
func (s *Sealed) AwaitGroup() {
	s.draft.Close()
	if s.group != nil && !s.leads {
		<-s.group.done
	}
}

// Insert inserts the entry into the log, in the transaction that settles the request.
func (s *Sealed) Insert(ctx context.Context, tx database.Execer) (err error) {
	if s.seq, err = insertEntry(ctx, tx, s.leaf, s.text, s.nonce, s.key); err == nil {
		s.misplaced = !s.log.enqueue(s.seq, s.leaf)
	}
	return err
}

// Write inserts the entry in a transaction of its own and confirms it: the answer is one without a settlement.
func (s *Sealed) Write(ctx context.Context) error {
	err := s.log.db.WriteGrouped(ctx, func(tx database.Tx) error {
		if s.log.shared {
			return insertPending(ctx, tx, s.entry.RequestID, s.key, s.Pending())
		}
		return s.Insert(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("write the receipt: %w", err)
	}
	return s.Confirm(ctx)
}

// Confirm waits until the entry, whose transaction has been committed, survives a power failure, and lets a tree head cover
// it.
func (s *Sealed) Confirm(ctx context.Context) error {
	if s.log.shared {
		s.log.wakeSequencer()
		return nil
	}
	if s.misplaced {
		return &CutError{Have: s.seq - 1, Size: s.log.Size(), Source: "the latest one of this process"}
	}
	if s.log.isConfirmed(s.seq) {
		return nil
	}
	if err := s.log.db.Flush(ctx); err != nil {
		return fmt.Errorf("flush the receipt: %w", err)
	}
	s.log.confirm(s.seq)
	return nil
}

// LeafHash returns the hash by which GET /receipts/{leaf hash} finds the receipt.
func (s *Sealed) LeafHash() Hash { return s.leaf }

// OnchainData returns what an answer carries of the receipt.
func (s *Sealed) OnchainData() OnchainData {
	return newOnchainData(&s.entry, s.leaf, keyID(s.log.key.verifier))
}

// head returns a tree head with the entry, for which it waits for at most two seconds.
func (s *Sealed) head(ctx context.Context) (*signedHead, error) {
	if head := s.log.published.Load(); !s.log.shared && head.Size >= s.seq { // as the leader of the group has left it
		return head, nil
	}
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	return s.log.headWith(ctx, &s.seq, s.leaf)
}

// Receipt returns the whole receipt, nonce included. It waits until the entry is in a signed tree; if that takes longer than
// two seconds, or fails, or ctx ends, the receipt has no proof, and GET /receipts/{leaf hash} gives it later.
func (s *Sealed) Receipt(ctx context.Context) (*Receipt, error) {
	r := &Receipt{Object: objectName, LeafHash: s.leaf, Log: s.log.key.vkey, Entry: &s.entry, Nonce: &s.nonce, canonical: s.text}
	head, err := s.head(ctx)
	s.leave()
	if err != nil {
		return r, nil //nolint:nilerr // the sequencer tries again, and logs its failure
	}
	proof, err := s.log.prove(head, s.seq)
	if err != nil {
		return nil, err
	}
	r.prove(s.seq-1, proof, head.checkpoint)
	return r, nil
}
