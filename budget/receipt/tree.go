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

// TileSource returns the first W hashes of a tile of a log.
type TileSource func(tlog.Tile) ([]byte, error)

// tile is a hash tile with the hashes between its leaves and its root: those of nodes[i] cover 1<<i leaves.
type tile struct {
	number int64 // within the level
	nodes  [tileHeight + 1][]tlog.Hash
}

// newTile returns the tile of stored leaves.
func newTile(number int64, data []byte) tile {
	t := tile{number: number}
	for leaf := range slices.Chunk(data, tlog.HashSize) {
		t.append(tlog.Hash(leaf))
	}
	return t
}

// append adds a leaf to a tile that is not full.
func (t *tile) append(leaf tlog.Hash) {
	t.nodes[0] = append(t.nodes[0], leaf)
	for level := 0; level < tileHeight && len(t.nodes[level])%2 == 0; level++ {
		pair := t.nodes[level][len(t.nodes[level])-2:]
		t.nodes[level+1] = append(t.nodes[level+1], tlog.NodeHash(pair[0], pair[1]))
	}
}

func (t *tile) isFull() bool { return len(t.nodes[0]) == tileWidth }

// data returns the first leaves in their stored form.
func (t *tile) data(width int) []byte {
	data := make([]byte, 0, width*tlog.HashSize)
	for _, leaf := range t.nodes[0][:width] {
		data = append(data, leaf[:]...)
	}
	return data
}

// tree is the Merkle tree of a log. It keeps the rightmost tile of each level in memory, and loads others. It may be read
// concurrently.
//
// Tiles are stored when one of level 0 is full, with those above it: the leaves behind the last full one are those of the table
// receipts.
type tree struct {
	size    int64
	load    TileSource
	edges   []tile
	unsaved map[tlog.Tile]tile // those to store, without a width
	before  int64              // the size of the tree that next was called for
	places  map[Hash]int64     // of the entries that a round has added since, by leaf hash; from 1
}

// newTree returns the tree with a size whose tiles load returns.
func newTree(size int64, load TileSource) (*tree, error) {
	t := (&tree{size: size, load: load}).next()
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

// next returns a copy of the tree to append to. What is appended to a copy that is given up does not change the tree: it lies behind
// the ends of its slices.
func (t *tree) next() *tree {
	return &tree{size: t.size, load: t.load, edges: slices.Clone(t.edges), unsaved: map[tlog.Tile]tile{}, before: t.size, places: map[Hash]int64{}}
}

// append adds an entry.
func (t *tree) append(leaf tlog.Hash) {
	number := t.size
	t.size++
	for level := 0; ; level++ {
		if level == len(t.edges) {
			t.edges = append(t.edges, tile{})
		}
		edge := &t.edges[level]
		if edge.isFull() {
			*edge = tile{number: number / tileWidth}
		}
		edge.append(leaf)
		if level > 0 || edge.isFull() {
			t.unsaved[tlog.Tile{H: tileHeight, L: level, N: edge.number}] = *edge
		}
		if !edge.isFull() {
			return
		}
		leaf, number = edge.nodes[tileHeight][0], number/tileWidth
	}
}

// save calls store with each tile that is to be stored.
func (t *tree) save(store func(id tlog.Tile, hashes []byte) error) error {
	for id, unsaved := range t.unsaved {
		id.W = len(unsaved.nodes[0])
		if err := store(id, unsaved.data(id.W)); err != nil {
			return err
		}
	}
	t.unsaved = map[tlog.Tile]tile{}
	return nil
}

// ReadHashes implements tlog.HashReader.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	var last tile
	lastLevel := -1
	for i, index := range indexes {
		level, n := tlog.SplitStoredHashIndex(index)
		bits := tileHeight - level%tileHeight
		if number := n >> bits; level/tileHeight != lastLevel || number != last.number {
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

// tile returns a tile. All but the rightmost ones are full.
func (t *tree) tile(level int, number int64) (tile, error) {
	if level < len(t.edges) && t.edges[level].number == number {
		return t.edges[level], nil
	}
	data, err := t.load(tlog.Tile{H: tileHeight, L: level, N: number, W: tileWidth})
	if err != nil {
		return tile{}, err
	}
	return newTile(number, data), nil
}

// root returns the root hash of the first size entries.
func (t *tree) root(size int64) (tlog.Hash, error) { return tlog.TreeHash(size, t) }

// hasRoot checks that the tree has the root of its head, and else returns an error for that.
func (t *tree) hasRoot(head *TreeHead, otherwise error) error {
	root, err := t.root(t.size)
	if err == nil && root != head.Root {
		err = otherwise
	}
	return err
}

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
