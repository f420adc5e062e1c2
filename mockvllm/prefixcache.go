package mockvllm

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
)

// blockTokens is the size of a block of the KV cache, in tokens: vLLM's default.
const blockTokens = 16

// prefixCache remembers which blocks of tokens the engine has computed. A block is identified by its tokens and all
// that precede them, so that a prompt's cached part is a prefix of it. The least recently used blocks are evicted. Blocks
// of running requests are not pinned: they are used when the request starts and when it ends.
type prefixCache struct {
	capacity int // in blocks; 0 caches nothing
	seed     maphash.Seed

	mu      sync.Mutex
	blocks  map[uint64]*list.Element // its value is the key
	recent  *list.List               // most recently used first
	queries int                      // tokens looked up
	hits    int                      // tokens of them found
}

func newPrefixCache(capacity int) *prefixCache {
	return &prefixCache{capacity: capacity, seed: maphash.MakeSeed(), blocks: make(map[uint64]*list.Element), recent: list.New()}
}

// lookup returns how many tokens at the start of a prompt are cached, and adds the prompt's blocks. The last token is
// never taken from the cache, since its logits are needed. Without read the tokens are those of a finished
// sequence, or of a prompt that is computed anew and not counted, as in vLLM if its log-probabilities are wanted.
func (c *prefixCache) lookup(prompt []int, salt string, read bool) (cached int) {
	if c.capacity == 0 {
		return 0
	}
	keys := c.keys(prompt, salt)
	c.mu.Lock()
	defer c.mu.Unlock()
	if read {
		for cached+blockTokens < len(prompt) && c.blocks[keys[cached/blockTokens]] != nil {
			cached += blockTokens
		}
		c.queries += len(prompt)
		c.hits += cached
	}
	c.use(keys)
	return cached
}

// use makes blocks the most recently used ones. The last is the first to be evicted, since the others are useful without
// it. c.mu must be held.
func (c *prefixCache) use(keys []uint64) {
	for _, key := range slices.Backward(keys) {
		if block := c.blocks[key]; block != nil {
			c.recent.MoveToFront(block)
			continue
		}
		c.blocks[key] = c.recent.PushFront(key)
		if c.recent.Len() > c.capacity {
			delete(c.blocks, c.recent.Remove(c.recent.Back()).(uint64))
		}
	}
}

// keys returns the keys of the full blocks of tokens.
func (c *prefixCache) keys(tokens []int, salt string) []uint64 {
	keys := make([]uint64, 0, len(tokens)/blockTokens)
	key := maphash.String(c.seed, salt)
	var content []byte
	for block := range slices.Chunk(tokens, blockTokens) {
		if len(block) < blockTokens {
			break
		}
		content = binary.LittleEndian.AppendUint64(content[:0], key)
		for _, id := range block {
			content = binary.LittleEndian.AppendUint64(content, uint64(id))
		}
		key = maphash.Bytes(c.seed, content)
		keys = append(keys, key)
	}
	return keys
}

// reset forgets all blocks; the counters remain.
func (c *prefixCache) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.blocks)
	c.recent.Init()
}

// counts returns how many tokens were looked up, and how many of them were found.
func (c *prefixCache) counts() (queries, hits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queries, c.hits
}
