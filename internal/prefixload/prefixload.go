// Package prefixload makes prompts that share their beginnings, and says what a prefix cache would have of them. Benchmarks and
// tests of routing send the same load with it.
package prefixload

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

const (
	seed          = 20
	turns         = 5 // of a conversation
	exampleTokens = 3000
	firstID, ids  = 20, 200 // of the tokens: no special ones, and such as the mock's model has
)

// Conversation is a number of prompts, as token ids. Each is sent when the response to the one before is complete.
type Conversation [][]int

// Queue has the conversations that wait for their next prompt. Which one is next is drawn.
type Queue struct {
	mu      sync.Mutex
	random  *rand.Rand
	waiting []Conversation
}

// New returns a queue, which is the same for the same arguments, of conversations that grow by turns, and of questions about long
// prompts, each question a conversation of one prompt.
func New(conversations, examples, questions int) *Queue {
	q := &Queue{random: rand.New(rand.NewPCG(seed, 0))}
	tokens := func(n int) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = firstID + q.random.IntN(ids)
		}
		return all
	}
	for range conversations {
		var c Conversation
		prompt := tokens(100 + q.random.IntN(300))
		for range turns {
			c = append(c, prompt)
			prompt = slices.Concat(prompt, tokens(100+q.random.IntN(200)))
		}
		q.waiting = append(q.waiting, c)
	}
	for range examples {
		prompt := tokens(exampleTokens)
		for range questions {
			q.waiting = append(q.waiting, Conversation{slices.Concat(prompt, tokens(20+q.random.IntN(60)))})
		}
	}
	return q
}

// Next takes a conversation out of the queue: its first prompt is to be sent. It returns nil if none waits.
func (q *Queue) Next() Conversation {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	drawn, last := q.random.IntN(len(q.waiting)), len(q.waiting)-1
	c := q.waiting[drawn]
	q.waiting[drawn] = q.waiting[last]
	q.waiting = q.waiting[:last]
	return c
}

// Return puts the rest of a conversation back, if there is any.
func (q *Queue) Return(rest Conversation) {
	if len(rest) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, rest)
}

// Prompts returns how many prompts wait.
func (q *Queue) Prompts() (n int) {
	for _, c := range q.waiting {
		n += len(c)
	}
	return n
}

// Blocks returns how many blocks of so many tokens all prompts have that differ.
func (q *Queue) Blocks(tokens int) int {
	c := NewCache(math.MaxInt, tokens)
	for _, prompts := range q.waiting {
		for _, prompt := range prompts {
			c.Serve(prompt)
		}
	}
	return c.newest.Len()
}

// Cache is a prefix cache: the blocks of prompts, of which the least recently used are evicted.
type Cache struct {
	capacity int // in blocks
	tokens   int // of a block
	seed     maphash.Seed
	blocks   map[uint64]*list.Element
	newest   *list.List
}

// NewCache returns a cache of so many blocks of so many tokens.
func NewCache(capacity, tokens int) *Cache {
	return &Cache{capacity, tokens, maphash.MakeSeed(), map[uint64]*list.Element{}, list.New()}
}

// Serve returns how many tokens of a prompt are cached, and caches it. The last token never is: its logits are needed.
func (c *Cache) Serve(prompt []int) (cached int) {
	var keys []uint64
	key, text := uint64(0), []byte(nil)
	for block := range slices.Chunk(prompt[:len(prompt)/c.tokens*c.tokens], c.tokens) {
		text = binary.LittleEndian.AppendUint64(text[:0], key)
		for _, id := range block {
			text = binary.LittleEndian.AppendUint32(text, uint32(id))
		}
		key = maphash.Bytes(c.seed, text)
		keys = append(keys, key)
	}
	for cached+c.tokens < len(prompt) && c.blocks[keys[cached/c.tokens]] != nil {
		cached += c.tokens
	}
	for _, key := range slices.Backward(keys) { // the last is the first to be evicted
		if block := c.blocks[key]; block != nil {
			c.newest.MoveToFront(block)
			continue
		}
		c.blocks[key] = c.newest.PushFront(key)
		if c.newest.Len() > c.capacity {
			delete(c.blocks, c.newest.Remove(c.newest.Back()).(uint64))
		}
	}
	return cached
}
