package receipt

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	// tileHeight is the height of a hash tile, as c2sp.org/tlog-tiles defines it.
	tileHeight = 8
	// tileWidth is the number of hashes in a full tile.
	tileWidth = 1 << tileHeight
)

// tileID is the place of a tile: its level, and its number within the level.
type tileID struct {
	level  int
	number int64
}

// tile is a hash tile with the hashes between its leaves and its root: nodes[0] are the leaves, which are stored, and a
// node of nodes[i] covers 1<<i leaves. Only complete nodes are there.
type tile struct{ nodes [tileHeight + 1][]tlog.Hash }

// parseTile returns the tile of stored leaves.
func parseTile(stored []byte) (*tile, error) {
	if len(stored)%tlog.HashSize != 0 || len(stored) > tileWidth*tlog.HashSize {
		return nil, errTile
	}
	t := &tile{}
	for leaf := range slices.Chunk(stored, tlog.HashSize) {
		t.append(tlog.Hash(leaf))
	}
	return t, nil
}

var errTile = errors.New("a hash tile has a length that none can have")

// append adds a leaf to a tile that is not full.
func (t *tile) append(leaf tlog.Hash) {
	t.nodes[0] = append(t.nodes[0], leaf)
	for i := 0; len(t.nodes[i])%2 == 0; i++ {
		pair := t.nodes[i][len(t.nodes[i])-2:]
		t.nodes[i+1] = append(t.nodes[i+1], tlog.NodeHash(pair[0], pair[1]))
		if i+1 == tileHeight {
			break
		}
	}
}

func (t *tile) full() bool { return len(t.nodes[0]) == tileWidth }

// stored returns the first leaves as they are stored.
func (t *tile) stored(width int) []byte {
	data := make([]byte, 0, width*tlog.HashSize)
	for _, leaf := range t.nodes[0][:width] {
		data = append(data, leaf[:]...)
	}
	return data
}

// tree is the Merkle tree of a log. It keeps the rightmost tile of each level in memory, and loads others. It must not be
// used concurrently.
type tree struct {
	size    int64
	edges   []*tile          // the rightmost tile of each level
	changed map[tileID]*tile // not on disk
	saving  map[tileID]*tile // not known to be on disk; see takeChanged
	load    func(tileID) (*tile, error)
}

// newTree returns the tree with a size whose tiles load returns.
func newTree(size int64, load func(tileID) (*tile, error)) (*tree, error) {
	t := &tree{size: size, changed: map[tileID]*tile{}, load: load}
	for level, leaves := 0, size; leaves > 0; level, leaves = level+1, leaves/tileWidth {
		edge, err := load(tileID{level, (leaves - 1) / tileWidth})
		if err != nil {
			return nil, err
		}
		width := (leaves-1)%tileWidth + 1
		if int64(len(edge.nodes[0])) < width {
			return nil, fmt.Errorf("%w: level %d has %d hashes in place of %d", errMissingTile, level, len(edge.nodes[0]), width)
		}
		if edge, err = parseTile(edge.stored(int(width))); err != nil {
			return nil, err
		}
		t.edges = append(t.edges, edge)
	}
	return t, nil
}

var errMissingTile = errors.New("a hash tile of the receipt log is missing or too short")

// append adds an entry.
func (t *tree) append(leaf tlog.Hash) {
	number := t.size
	for level := 0; ; level++ {
		if level == len(t.edges) {
			t.edges = append(t.edges, &tile{})
		}
		if t.edges[level].full() {
			t.edges[level] = &tile{}
		}
		edge := t.edges[level]
		edge.append(leaf)
		t.changed[tileID{level, number / tileWidth}] = edge
		if !edge.full() {
			break
		}
		leaf, number = edge.nodes[tileHeight][0], number/tileWidth
	}
	t.size++
}

// appendNext adds the entry at a place, from 1. The error is a CutError if it is not the next one.
func (t *tree) appendNext(seq int64, leaf tlog.Hash) error {
	if seq != t.size+1 {
		return &CutError{Have: t.size, Size: seq, Source: "the entries in the database"}
	}
	t.append(leaf)
	return nil
}

// takeChanged returns the stored form of the changed tiles, which the caller saves. Then it calls either forgetSaving or
// restoreChanged.
func (t *tree) takeChanged() map[tileID][]byte {
	taken := make(map[tileID][]byte, len(t.changed))
	for id, changed := range t.changed {
		taken[id] = changed.stored(len(changed.nodes[0]))
	}
	t.saving, t.changed = t.changed, map[tileID]*tile{}
	return taken
}

// forgetSaving forgets the tiles that takeChanged has returned: they are on disk.
func (t *tree) forgetSaving() { t.saving = nil }

// restoreChanged marks the tiles that takeChanged has returned as changed: they may not be on disk.
func (t *tree) restoreChanged() {
	maps.Copy(t.changed, t.saving) // a tile that is in both is the same one
	t.saving = nil
}

// edge returns the rightmost tile of a level if it has a number.
func (t *tree) edge(id tileID) *tile {
	if id.level >= len(t.edges) {
		return nil
	}
	leaves := t.size >> (tileHeight * id.level)
	if id.number != (leaves-1)/tileWidth {
		return nil
	}
	return t.edges[id.level]
}

// tile returns a tile.
func (t *tree) tile(id tileID) (*tile, error) {
	if edge := t.edge(id); edge != nil {
		return edge, nil
	}
	for _, unsaved := range []map[tileID]*tile{t.changed, t.saving} {
		if found := unsaved[id]; found != nil {
			return found, nil
		}
	}
	return t.load(id)
}

// ReadHashes implements tlog.HashReader.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	var last tileID
	var found *tile
	for i, index := range indexes {
		level, n := tlog.SplitStoredHashIndex(index)
		inTile := level % tileHeight
		bits := tileHeight - inTile
		id := tileID{level / tileHeight, n >> bits}
		if found == nil || id != last {
			var err error
			if found, err = t.tile(id); err != nil {
				return nil, err
			}
			last = id
		}
		offset := n & (1<<bits - 1)
		if offset >= int64(len(found.nodes[inTile])) {
			return nil, fmt.Errorf("%w: level %d, number %d", errMissingTile, id.level, id.number)
		}
		hashes[i] = found.nodes[inTile][offset]
	}
	return hashes, nil
}

// root returns the root hash of the first size entries.
func (t *tree) root(size int64) (tlog.Hash, error) {
	return tlog.TreeHash(size, t) //nolint:wrapcheck // the error of load
}
