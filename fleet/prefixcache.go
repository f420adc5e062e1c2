package fleet

import (
	"context"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
)

const (
	cacheMemory     = 64 << 20 // bytes that the models of all caches take together
	blockMemory     = 96       // bytes that a block takes, with its share of the index
	assumedPerToken = 4        // bytes of a prompt, until responses have shown how many there are
	countedTokens   = 1 << 20  // then the counts of bytes and tokens are halved
	unknownSize     = -1
)

// prefixCache models the prefix cache of one backend by what was sent there: the blocks of prompts, of which the least recently
// used are evicted when they are more than the real cache has room for. It keeps hashes, with a random key, in memory only.
type prefixCache struct {
	shared *prefixes

	mu           sync.Mutex
	index        map[uint64]int32 // where a block is, by its hash
	blocks       []cachedBlock    // in a ring by their last use; the first is no block, and between the newest and the oldest
	unused       []int32          // places among blocks
	size         int64            // of all blocks, in bytes
	tokens       int64            // that the real cache has room for
	unit         int              // of the prompts that the blocks are of
	answered     uint64           // the last request that has been answered
	seen         [2]int64         // bytes and tokens of answered prompts
	processStart string           // of the server; empty: not known
}

type cachedBlock struct {
	hash         uint64
	used         uint64 // by which request
	size         int64  // in bytes
	newer, older int32
}

func newPrefixCache(shared *prefixes) *prefixCache {
	c := &prefixCache{shared: shared, tokens: unknownSize}
	c.clear()
	return c
}

// clear empties the cache. c.mu is held.
func (c *prefixCache) clear() {
	c.index, c.blocks, c.unused, c.size = map[uint64]int32{}, make([]cachedBlock, 1), nil, 0
}

// begin sets the size of the real cache, of a server that has become ready. It is empty, unless the server may have kept it, and its
// process is the one from before.
func (c *prefixCache) begin(tokens int64, processStart string, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !kept || processStart == "" || processStart != c.processStart {
		c.clear()
	}
	c.tokens, c.processStart = tokens, processStart
}

// look returns how many bytes of a prompt the cache has, and the request that last used what it would have to evict for the
// rest; 0 if it has room.
func (c *prefixCache) look(p *Prefix) (cached int, evicts uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.find(p); n > 0 {
		cached = p.blocks[n-1].end
	}
	if c.size+int64(p.length-cached) > c.room() {
		evicts = c.oldest().used
	}
	return cached, evicts
}

// find returns how many of a prompt's blocks the cache has. They are the first ones, since a block is never evicted before those
// that follow it. c.mu is held.
func (c *prefixCache) find(p *Prefix) int {
	if c.unit != p.unit {
		return 0
	}
	return sort.Search(len(p.blocks), func(i int) bool { return c.index[p.blocks[i].hash] == 0 })
}

// perToken returns how many bytes of a prompt a token has. c.mu is held.
func (c *prefixCache) perToken() float64 {
	if c.seen[1] == 0 {
		return assumedPerToken
	}
	return float64(c.seen[0]) / float64(c.seen[1])
}

// room returns how many bytes of prompts the real cache has room for. c.mu is held.
func (c *prefixCache) room() int64 {
	if c.tokens == unknownSize {
		return math.MaxInt64
	}
	return int64(float64(c.tokens) * c.perToken())
}

// sentPrompt is what is kept of a prompt until its response.
type sentPrompt struct {
	request uint64
	last    uint64 // the hash of its last block; 0: it has none
	length  int    // in bytes
	tail    int    // of it, after the last block
	cached  int    // of it; 0 if that is not certain, since the prompt that brought it has not been answered, or may have been another
	used    uint64 // the request that last used what was cached
}

// send records that a prompt is sent to the backend. Its last block is the first to be evicted.
func (c *prefixCache) send(p *Prefix) sentPrompt {
	sent := sentPrompt{request: c.shared.clock.Add(1), length: p.length, tail: p.length}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unit < p.unit {
		c.clear()
		c.unit = p.unit
	}
	if !p.known() || c.unit > p.unit {
		return sent
	}
	if n := c.find(p); n > 0 {
		before := p.blocks[n-1]
		if used := c.blocks[c.index[before.hash]].used; used <= c.answered && !p.byKey {
			sent.cached, sent.used = before.end, used
		}
		if n < len(p.blocks) { // it goes on with what was generated there
			c.remove(afterBlock(before.hash))
		}
	}
	for i, block := range slices.Backward(p.blocks) {
		start := 0
		if i > 0 {
			start = p.blocks[i-1].end
		}
		c.put(block.hash, int64(block.end-start), sent.request)
	}
	last := p.blocks[len(p.blocks)-1]
	sent.last, sent.tail = last.hash, p.length-last.end
	c.evict()
	return sent
}

// afterBlock returns the hash of what follows the last block of a prompt: the rest of it, and what was generated.
func afterBlock(hash uint64) uint64 { return mix(^hash) }

// Usage is what a backend reports of a request, in tokens.
type Usage struct {
	Prompt, Completion int64
	Cached             *int64 // of the prompt; nil if it is not reported
}

// record records the response to a prompt. If the server had less of it than it must have had, the real cache has evicted that,
// and so all that was used before; but not more than half goes at once, since the request that brought it may have failed.
func (c *prefixCache) record(sent *sentPrompt, u Usage) {
	if sent.request == 0 || u.Prompt <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = max(c.answered, sent.request)
	if sent.length == 0 { // a prompt that reads no cache takes room in it
		sent.tail = int(float64(u.Prompt) * c.perToken())
	} else {
		c.seen[0], c.seen[1] = c.seen[0]+int64(sent.length), c.seen[1]+u.Prompt
		if c.seen[1] > countedTokens {
			c.seen[0], c.seen[1] = c.seen[0]/2, c.seen[1]/2
		}
	}
	if u.Cached != nil && 2*float64(*u.Cached)*float64(sent.length) < float64(u.Prompt)*float64(sent.cached) {
		for half := c.size / 2; c.size > half && c.oldest().used <= sent.used; {
			c.remove(c.oldest().hash)
		}
	}
	after := afterBlock(sent.last)
	if sent.last == 0 {
		after = mix(sent.request)
	}
	c.put(after, int64(sent.tail)+int64(float64(u.Completion)*c.perToken()), sent.request)
	c.evict()
}

// put makes a block the newest one. c.mu is held.
func (c *prefixCache) put(hash uint64, size int64, request uint64) {
	i, free := c.index[hash], len(c.unused)
	if i > 0 {
		c.unlink(i)
	} else {
		if free > 0 {
			i, c.unused = c.unused[free-1], c.unused[:free-1]
		} else {
			i, c.blocks = int32(len(c.blocks)), append(c.blocks, cachedBlock{})
		}
		c.index[hash] = i
	}
	newest := c.blocks[0].older
	c.blocks[i] = cachedBlock{hash: hash, used: request, size: size, older: newest}
	c.blocks[newest].newer, c.blocks[0].older = i, i
	c.size += size
}

// remove removes a block, if the cache has it. c.mu is held.
func (c *prefixCache) remove(hash uint64) {
	if i := c.index[hash]; i > 0 {
		c.unlink(i)
		delete(c.index, hash)
		c.unused = append(c.unused, i)
	}
}

// unlink takes a block out of the ring. c.mu is held.
func (c *prefixCache) unlink(i int32) {
	b := &c.blocks[i]
	c.blocks[b.newer].older, c.blocks[b.older].newer = b.older, b.newer
	c.size -= b.size
}

// oldest returns the block to be evicted next. c.mu is held.
func (c *prefixCache) oldest() *cachedBlock { return &c.blocks[c.blocks[0].newer] }

// evict removes the oldest blocks until the rest has room in the real cache, and in this one's share of memory. If the latter is
// too small, the blocks of later prompts are larger. c.mu is held.
func (c *prefixCache) evict() {
	room, most := c.room(), int(c.shared.maxBlocks.Load())
	if len(c.index) > most && c.size <= room && c.tokens != unknownSize && c.unit < maxUnit {
		c.shared.unit.CompareAndSwap(int64(c.unit), 2*int64(c.unit))
	}
	for len(c.index) > 0 && (c.size > room || len(c.index) > most) {
		c.remove(c.oldest().hash)
	}
}

// RecordUsage records the response of the lease's backend.
func (l *Lease) RecordUsage(u Usage) { l.cache.record(&l.sent, u) }

// beginCache asks a server that has become ready for the size of its prefix cache. A server that was unreachable may be the one
// from before, and then has what it had.
func (b *Backend) beginCache(ctx context.Context, wasUnreachable bool) {
	tokens, processStart := int64(unknownSize), ""
	if metrics, err := b.read(ctx, "/metrics"); err == nil {
		tokens, processStart = cacheSize(string(metrics))
	}
	b.cache.begin(tokens, processStart, wasUnreachable)
}

var cacheLabel = regexp.MustCompile(`[{,](block_size|num_gpu_blocks|enable_prefix_caching)="(\w+)"`)

// cacheSize returns how many tokens the prefix caches of a server's engines have room for, and when its process was started, from
// its metrics.
func cacheSize(metrics string) (tokens int64, processStart string) {
	tokens = unknownSize
	for line := range strings.Lines(metrics) {
		if start, found := strings.CutPrefix(line, "process_start_time_seconds "); found {
			processStart = strings.TrimSpace(start)
		}
		if !strings.HasPrefix(line, "vllm:cache_config_info{") {
			continue
		}
		label := map[string]string{}
		for _, l := range cacheLabel.FindAllStringSubmatch(line, -1) {
			label[l[1]] = l[2]
		}
		size, err := strconv.ParseInt(label["block_size"], 10, 32)
		blocks, err2 := strconv.ParseInt(label["num_gpu_blocks"], 10, 32)
		switch {
		case label["enable_prefix_caching"] == "False":
			tokens = max(tokens, 0)
		case err == nil && err2 == nil:
			tokens = max(tokens, 0) + size*blocks
		}
	}
	return tokens, processStart
}
