package mockvllm

import (
	"sync"

	"basegate/internal/blockcache"
)

// blockTokens is the size of a block of the KV cache, in tokens: vLLM's default.
const blockTokens = 16

// prefixCache remembers which blocks of tokens the engine has computed. Blocks of running requests are not pinned: they are used when
// the request starts and when it ends.
type prefixCache struct {
	capacity int // in blocks; 0 caches nothing

	mu      sync.Mutex
	blocks  *blockcache.Cache
	queries int // tokens looked up
	hits    int // tokens of them found
}

func newPrefixCache(capacity int) *prefixCache {
	return &prefixCache{capacity: capacity, blocks: blockcache.New(capacity, blockTokens)}
}

// lookup returns how many tokens at the start of a prompt are cached, and caches it. Without read they are those of a finished
// sequence, or of a prompt that is computed anew and not counted, as in vLLM if its log-probabilities are wanted.
func (c *prefixCache) lookup(prompt []int, salt string, read bool) (cached int) {
	if c.capacity == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cached = c.blocks.Use(prompt, salt)
	if !read {
		return 0
	}
	c.queries += len(prompt)
	c.hits += cached
	return cached
}

// reset forgets all blocks; the counters remain.
func (c *prefixCache) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocks.Clear()
}

func (c *prefixCache) counts() (queries, hits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queries, c.hits
}
