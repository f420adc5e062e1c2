package receipt

import (
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// queue holds the entries that transactions have inserted, until the tree takes those that are on disk. Places begin at 1.
// A place whose transaction was rolled back is inserted again before a later one is on disk, since one transaction inserts
// at a time.
type queue struct {
	first     int64 // the place of leaves[0]
	leaves    []tlog.Hash
	confirmed int64 // the entries up to this place are on disk
}

// reset begins the queue after the entries of a tree.
func (q *queue) reset(size int64) { *q = queue{first: size + 1, confirmed: size} }

// insert adds the entry at a place. It returns false for a place that does not follow the others: then somebody else has
// inserted or removed entries, or replaced the database.
func (q *queue) insert(seq int64, leaf tlog.Hash) bool {
	switch at := seq - q.first; {
	case at == int64(len(q.leaves)):
		q.leaves = append(q.leaves, leaf)
	case at >= 0 && at < int64(len(q.leaves)):
		q.leaves[at] = leaf
	default:
		return false
	}
	return true
}

// confirm records that the entries up to a place, which insert has added, are on disk.
func (q *queue) confirm(seq int64) { q.confirmed = max(q.confirmed, seq) }

// take removes and returns the entries that are on disk.
func (q *queue) take() []tlog.Hash {
	n := max(q.confirmed-q.first+1, 0)
	taken := q.leaves[:n]
	q.leaves, q.first = slices.Clone(q.leaves[n:]), q.first+n
	return taken
}
