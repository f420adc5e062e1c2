package receipt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
)

// Draft is a receipt whose answer is not whole yet. Its Answer must get every byte of the answer, or the payload of every
// event.
type Draft struct {
	Answer

	log   *Log
	nonce Hash
}

// NewDraft begins a receipt.
func (l *Log) NewDraft() *Draft {
	nonce := newNonce()
	return &Draft{Answer: Answer{hash: newCIDHash(nonce)}, log: l, nonce: nonce}
}

// Sealed is the receipt of a whole answer. The answer may be finished after the transaction with Insert is on disk and
// Confirm has returned nil.
type Sealed struct {
	log   *Log
	key   string
	leaf  Hash
	nonce Hash
	entry Entry
	text  []byte
	seq   int64 // set by Insert

	misplaced bool // the entry is not the next one of the log
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
	return &Sealed{log: d.log, key: key, leaf: Hash(tlog.RecordHash(text)), nonce: d.nonce, entry: e, text: text}, nil
}

// AwaitOthers waits for at most 10 ms so that the streams that end meanwhile share a transaction and a tree head. A stream that
// ends alone does not wait. It is called before Insert, and by streams alone: only they wait for a tree head.
func (s *Sealed) AwaitOthers(ctx context.Context) { s.log.gate.pass(ctx) }

// Insert inserts the entry into the log, in the transaction that settles the request.
func (s *Sealed) Insert(ctx context.Context, tx database.Execer) (err error) {
	if s.seq, err = insertEntry(ctx, tx, s.leaf, s.text, s.nonce, s.key); err == nil {
		s.misplaced = !s.log.enqueue(s.seq, s.leaf)
	}
	return err
}

// Confirm waits until the entry, whose transaction has been committed, survives a power failure, and lets a tree head cover
// it.
func (s *Sealed) Confirm(ctx context.Context) error {
	if s.log.shared {
		s.log.wakeSequencer()
		return nil
	}
	if err := s.log.db.Flush(ctx); err != nil {
		return fmt.Errorf("flush the receipt: %w", err)
	}
	if s.misplaced {
		return &CutError{Have: s.seq - 1, Size: s.log.Size(), Source: "the latest one of this process"}
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

// Receipt returns the whole receipt, nonce included. It waits until the entry is in a signed tree; if that takes longer than
// two seconds, or ctx ends, the receipt has no proof, and GET /receipts/{leaf hash} gives it later.
func (s *Sealed) Receipt(ctx context.Context) (*Receipt, error) {
	r := &Receipt{Object: objectName, LeafHash: s.leaf, Log: s.log.key.vkey, Entry: &s.entry, Nonce: &s.nonce, canonical: s.text}
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	head, err := s.log.headWith(ctx, &s.seq, s.leaf)
	if errors.Is(err, context.Cause(ctx)) && err != nil {
		return r, nil
	}
	proof, err := s.log.prove(head, s.seq)
	if err != nil {
		return nil, err
	}
	r.prove(s.seq-1, proof, head.checkpoint)
	return r, nil
}
