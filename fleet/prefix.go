package fleet

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"basegate/breaker"
	"basegate/gateway/config"
)

// A request goes to the backend whose prefix cache has most of its prompt, by the model of the caches (prefixCache), if that is a
// good part of it. Any other goes where the fewest requests are in flight, and of those to the backend whose cache has room or
// would evict what was used the longest ago: so the caches of all backends together evict what one of their size would.
const (
	firstUnit         = 64      // the shortest block of a prompt, in bytes: about one of vLLM's
	maxUnit           = 4 << 10 // the longest that it becomes
	blocksPerDoubling = 16      // of a prompt's length, after the first 32: so blocks further on are longer, and a prompt has few

	minShare        = 3   // a prompt belongs where a third of its bytes are cached
	recentRequests  = 256 // of a backend: then the counts of all are halved
	maxLoadPercent  = 125 // of the mean: a backend that would have more requests in flight is passed over
	minExcess       = 3   // requests over the mean: fewer are chance, unless the backend has had many requests lately
	maxSharePercent = 110 // of the mean of the recent requests: what is many
)

// Prefix is what a prompt begins with. One without blocks has no preference for a backend.
type Prefix struct {
	blocks []promptBlock
	length int  // of the prompt, in bytes
	unit   int  // of the blocks
	byKey  bool // it is a client's key, which says nothing of what the cache has
}

type promptBlock struct {
	hash uint64 // of the prompt up to the block's end
	end  int
}

func (p *Prefix) known() bool { return len(p.blocks) > 0 }

// prefixes is what the models of all caches have in common.
type prefixes struct {
	seed      maphash.Seed
	clock     atomic.Uint64 // counts requests
	unit      atomic.Int64  // the shortest block, in bytes; it doubles when a cache's blocks take more than its share of memory
	maxBlocks atomic.Int64  // of a cache
}

func newPrefixes() *prefixes {
	p := &prefixes{seed: maphash.MakeSeed()}
	p.unit.Store(firstUnit)
	return p
}

// hash hashes the beginnings of a prompt. The scope tells apart what shares no cache.
func (p *prefixes) hash(scope uint64, prompt []byte) Prefix {
	unit := int(p.unit.Load())
	units := len(prompt) / unit
	most := min(units, blocksPerDoubling*max(bits.Len(uint(units))-3, 1))
	all := Prefix{blocks: make([]promptBlock, 0, most), length: len(prompt), unit: unit}
	hash, start, size, doubled := scope, 0, unit, 2*blocksPerDoubling*unit
	for end := size; end <= len(prompt); end += size {
		hash = mix(hash ^ maphash.Bytes(p.seed, prompt[start:end]))
		all.blocks = append(all.blocks, promptBlock{hash, end})
		if start = end; end == doubled {
			size, doubled = 2*size, 2*doubled
		}
	}
	return all
}

// mix is the finalizer of splitmix64: each bit of the result depends on each bit of h.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Prefix returns the Prefix of a prompt, by its bytes in the request. Prompts with different salts share no cache. The
// Prefix is zero if the model's backends are not chosen by it, and has no preference for prompts that are too short to be cached.
func (m *Model) Prefix(salt, prompt []byte) Prefix {
	if !m.steers() {
		return Prefix{}
	}
	return m.fleet.prefixes.hash(m.scope(salt), prompt)
}

// KeyPrefix returns the Prefix of the prompts for which clients send a key, whatever they begin with: a block of its own, of a
// prompt's length in bytes.
func (m *Model) KeyPrefix(salt []byte, key string, length int) Prefix {
	if !m.steers() {
		return Prefix{}
	}
	p := m.fleet.prefixes
	hash := mix(^m.scope(salt) ^ maphash.String(p.seed, key)) // the beginning of no prompt
	return Prefix{[]promptBlock{{hash, length}}, length, int(p.unit.Load()), true}
}

// steers reports whether the model's backends are chosen by the prompt.
func (m *Model) steers() bool {
	return len(m.backends) >= 2 && m.config.Balance == config.BalancePrefix
}

// cacheName returns what vLLM's prefix cache tells the model's blocks apart by from those of others.
func (m *Model) cacheName() string {
	if m.adapter != nil {
		return m.adapter.Name()
	}
	return m.config.ID
}

func (m *Model) scope(salt []byte) uint64 {
	return mix(maphash.String(m.fleet.prefixes.seed, m.cacheName()) ^ maphash.Bytes(m.fleet.prefixes.seed, salt))
}

// countLease counts a request of a backend. All counts are halved now and then, so that old requests count less.
func (m *Model) countLease(b *Backend) {
	if b.recent.Add(1) < recentRequests {
		return
	}
	for _, b := range m.backends {
		b.recent.Store(b.recent.Load() / 2)
	}
}

// candidate is a backend with its ranking criteria.
type candidate struct {
	backend *Backend
	penalty int    // the lower the better, before anything else
	load    int64  // requests or batch lines that it runs
	over    int    // 1: it is passed over because of its load, and what follows does not count
	loaded  int    // 1: it has the adapter of the request
	cached  int    // bytes of the prompt, if they are a good part of it: the more the better
	evicts  uint64 // the request that last used what its cache would evict for the rest; 0: nothing
	recent  int64  // requests that it has had lately
}

func (m *Model) candidate(b *Backend, load int64) candidate {
	c := candidate{backend: b, load: load}
	if m.adapter != nil && b.hasAdapter(m.adapter.Name()) {
		c.loaded = 1
	}
	return c
}

// sortCandidates sorts the best first: those that have the adapter if there is one, then by the prefix if there is one, and else
// by load.
func (m *Model) sortCandidates(all []candidate, p *Prefix) {
	// Shuffling and the stable sort distribute attempts over equal candidates.
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if p.known() || m.adapter != nil {
		weigh(all, p)
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.penalty, b.penalty), cmp.Compare(a.over, b.over), cmp.Compare(b.loaded, a.loaded),
			cmp.Compare(b.cached, a.cached), cmp.Compare(a.load, b.load), cmp.Compare(a.evicts, b.evicts), cmp.Compare(a.recent, b.recent))
	})
}

// weigh sets what the candidates have cached, and passes over those that have too much load, of the candidates that may
// get the request. One of them is always left, since one has at most the mean.
func weigh(all []candidate, p *Prefix) {
	best := slices.MinFunc(all, func(a, b candidate) int { return cmp.Compare(a.penalty, b.penalty) })
	load, recent, n := int64(1), int64(0), int64(0) // with the new request
	for i := range all {
		c := &all[i]
		if c.cached, c.evicts = c.backend.cache.look(p); minShare*c.cached < p.length {
			c.cached = 0
		}
		c.recent = c.backend.recent.Load()
		if c.penalty == best.penalty && c.backend.Breaker() != breaker.Open {
			load, recent, n = load+c.load, recent+c.recent, n+1
		}
	}
	if n == 0 {
		return
	}
	most := (load*maxLoadPercent + 100*n - 1) / (100 * n) // rounded up
	for i, c := range all {
		own := c.load + 1
		if own > most && (own*n > load+minExcess*n || c.recent*n*100 > recent*maxSharePercent) {
			all[i] = candidate{backend: c.backend, penalty: c.penalty, load: c.load, over: 1}
		}
	}
}
