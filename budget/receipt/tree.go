package receipt

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	// tileHeight is the height of a hash tile, as c2sp.org/tlog-tiles defines it.
	tileHeight = 8
	// tileWidth is the number of hashes in a full tile.
	tileWidth = 1 << tileHeight
)

var errMissingTile = errors.New("a hash tile of the receipt log is missing or too short")

// tileLoader returns the first W hashes of a stored tile.
type tileLoader func(tlog.Tile) ([]byte, error)

// tile is a hash tile with the hashes between its leaves and its root: those of nodes[i] cover 1<<i leaves.
type tile struct {
	number int64 // within the level
	data   []byte
	nodes  [tileHeight + 1][]tlog.Hash
}

// newTile returns the tile of stored leaves.
func newTile(number int64, data []byte) *tile {
	t := &tile{number: number, data: data}
	for leaf := range slices.Chunk(data, tlog.HashSize) {
		t.nodes[0] = append(t.nodes[0], tlog.Hash(leaf))
	}
	for level := range tileHeight {
		for pair := range slices.Chunk(t.nodes[level], 2) {
			if len(pair) == 2 {
				t.nodes[level+1] = append(t.nodes[level+1], tlog.NodeHash(pair[0], pair[1]))
			}
		}
	}
	return t
}

// tree is the Merkle tree of a log: stored tiles, of which it keeps the rightmost one of each level in memory, and the hashes of
// the entries that were appended since. It may be read concurrently.
type tree struct {
	size     int64
	load     tileLoader
	edges    []*tile
	appended map[int64]tlog.Hash // by tlog.StoredHashIndex
	places   map[Hash]int64      // of the entries that were added last, by leaf hash; from 1
}

// newTree returns the tree with a size whose tiles load returns.
func newTree(size int64, load tileLoader) (*tree, error) {
	t := &tree{size: size, load: load, appended: map[int64]tlog.Hash{}, places: map[Hash]int64{}}
	for level, leaves := 0, size; leaves > 0; level, leaves = level+1, leaves/tileWidth {
		id := tlog.Tile{H: tileHeight, L: level, N: (leaves - 1) / tileWidth, W: int((leaves-1)%tileWidth) + 1}
		data, err := load(id)
		if err != nil {
			return nil, err
		}
		t.edges = append(t.edges, newTile(id.N, data))
	}
	return t, nil
}

// with returns a copy of the tree, without what was appended, that loads tiles otherwise.
func (t *tree) with(load tileLoader) *tree {
	return &tree{size: t.size, load: load, edges: t.edges, appended: map[int64]tlog.Hash{}, places: map[Hash]int64{}}
}

// append adds an entry.
func (t *tree) append(leaf tlog.Hash) error {
	hashes, err := tlog.StoredHashesForRecordHash(t.size, leaf, t)
	if err != nil {
		return err
	}
	first := tlog.StoredHashIndex(0, t.size)
	for i, h := range hashes {
		t.appended[first+int64(i)] = h
	}
	t.size++
	t.places[Hash(leaf)] = t.size
	return nil
}

// ReadHashes implements tlog.HashReader.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	var last *tile
	var lastLevel int
	for i, index := range indexes {
		if h, found := t.appended[index]; found {
			hashes[i] = h
			continue
		}
		level, n := tlog.SplitStoredHashIndex(index)
		bits := tileHeight - level%tileHeight
		if number := n >> bits; last == nil || level/tileHeight != lastLevel || number != last.number {
			var err error
			lastLevel = level / tileHeight
			if last, err = t.tile(lastLevel, number); err != nil {
				return nil, err
			}
		}
		nodes, offset := last.nodes[level%tileHeight], n&(1<<bits-1)
		if offset >= int64(len(nodes)) {
			return nil, fmt.Errorf("%w: level %d, number %d", errMissingTile, lastLevel, last.number)
		}
		hashes[i] = nodes[offset]
	}
	return hashes, nil
}

// tile returns a stored tile. All but the rightmost ones are full.
func (t *tree) tile(level int, number int64) (*tile, error) {
	if level < len(t.edges) && t.edges[level].number == number {
		return t.edges[level], nil
	}
	data, err := t.load(tlog.Tile{H: tileHeight, L: level, N: number, W: tileWidth})
	if err != nil {
		return nil, err
	}
	return newTile(number, data), nil
}

// root returns the root hash of the first size entries.
func (t *tree) root(size int64) (tlog.Hash, error) { return tlog.TreeHash(size, t) }

// extends checks that the tree begins with the tree of a head.
func (t *tree) extends(head *TreeHead, source string) error {
	if head.Size > t.size {
		return &CutError{Have: t.size, Size: head.Size, Source: source}
	}
	root, err := t.root(head.Size)
	if err != nil {
		return err
	}
	if root != head.Root {
		return &ForkError{head.Size, source}
	}
	return nil
}
