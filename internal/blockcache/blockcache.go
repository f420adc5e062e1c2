// Package blockcache is a prefix cache like that of vLLM: it has blocks of tokens, each known by its tokens and all that precede
// them, so that what it has of a prompt is a prefix. The least recently used blocks are evicted.
package blockcache

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Cache is not safe for concurrent use.
type Cache struct {
	capacity int // in blocks
	tokens   int // of a block
	seed     maphash.Seed
	blocks   map[uint64]*list.Element // its value is the key
	recent   list.List                // most recently used first
}

// New returns a cache of so many blocks of so many tokens.
func New(capacity, tokens int) *Cache {
	return &Cache{capacity: capacity, tokens: tokens, seed: maphash.MakeSeed(), blocks: map[uint64]*list.Element{}}
}

// Len returns how many blocks are cached.
func (c *Cache) Len() int { return c.recent.Len() }

// Clear removes all blocks.
func (c *Cache) Clear() {
	clear(c.blocks)
	c.recent.Init()
}

// Use returns how many tokens of a prompt are cached, and caches it. The last token never is: its logits are needed. Prompts with
// different salts share no blocks.
func (c *Cache) Use(prompt []int, salt string) (cached int) {
	keys := c.keys(prompt, salt)
	for cached+c.tokens < len(prompt) && c.blocks[keys[cached/c.tokens]] != nil {
		cached += c.tokens
	}
	for _, key := range slices.Backward(keys) { // the last is the first to be evicted: the others are useful without it
		if block := c.blocks[key]; block != nil {
			c.recent.MoveToFront(block)
			continue
		}
		c.blocks[key] = c.recent.PushFront(key)
		if c.recent.Len() > c.capacity {
			delete(c.blocks, c.recent.Remove(c.recent.Back()).(uint64))
		}
	}
	return cached
}

// keys returns the keys of the full blocks of a prompt.
func (c *Cache) keys(prompt []int, salt string) (keys []uint64) {
	key, text := maphash.String(c.seed, salt), []byte(nil)
	for block := range slices.Chunk(prompt[:len(prompt)/c.tokens*c.tokens], c.tokens) {
		text = binary.LittleEndian.AppendUint64(text[:0], key)
		for _, id := range block {
			text = binary.LittleEndian.AppendUint64(text, uint64(id))
		}
		key = maphash.Bytes(c.seed, text)
		keys = append(keys, key)
	}
	return keys
}
