// Package prefixload makes prompts that share their beginnings. Benchmarks and tests of routing send the same load with it.
package prefixload

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"basegate/internal/blockcache"
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
	c := blockcache.New(math.MaxInt, tokens)
	for _, prompts := range q.waiting {
		for _, prompt := range prompts {
			c.Use(prompt, "")
		}
	}
	return c.Len()
}
