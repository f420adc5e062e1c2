package fleet

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"basegate/breaker"
	"basegate/gateway/config"
)

// Requests whose prompts begin alike go to the same backend, whose prefix cache has the beginning. So do those for which the
// client sent the same key. The hashes of a prompt's beginnings, at lengths that double in four steps, are looked up from
// the longest to the shortest: a prompt that shares a good part with an earlier one belongs to the family of that one, and
// else founds a family. The backend of a family is chosen by rendezvous hashing of its key, so that a backend that is lost
// moves its own families only, and gets them back. The key of a new family is the first of a few whose backend has had the
// fewest requests lately. Hashes are keyed with a random seed and are kept in memory only.
const (
	firstBlock = 64       // the shortest beginning, in bytes: about one block of vLLM's cache
	maxPrefix  = 32 << 10 // the longest one, in bytes; a longer prompt is told apart by this much
	maxLengths = 37       // from firstBlock to maxPrefix, four for each doubling

	foundingKeys    = 16      // from which a new family takes its key
	recentRequests  = 256     // of a backend: then the counts of all are halved
	minShare        = 3       // a prompt belongs to a family if it shares a third of its bytes with it
	knownPrefixes   = 1 << 15 // in each generation of the table; together they take about 3 MB
	maxLoadPercent  = 125     // of the mean: a backend that would have more requests in flight is passed over
	minExcess       = 3       // requests over the mean: fewer are chance, unless the backend has had many requests lately
	maxSharePercent = 110     // of the mean of the recent requests: what is many
)

// Prefix is what a prompt begins with. The zero Prefix has no preference for a backend.
type Prefix struct {
	family uint64
	known  bool
}

// prefixes is the table of known beginnings. It has two generations: when the recent one is full, it replaces the older,
// so that what has not been used for a while is forgotten.
type prefixes struct {
	seed maphash.Seed

	mu            sync.Mutex
	recent, older map[uint64]uint64 // family by the hash of a beginning
}

func newPrefixes() *prefixes { return &prefixes{seed: maphash.MakeSeed(), recent: map[uint64]uint64{}} }

// beginnings are the hashes of a prompt's beginnings and their lengths, in ascending order.
type beginnings struct {
	hashes  [maxLengths]uint64
	lengths [maxLengths]int
	n       int
}

// hash hashes the beginnings of a prompt. The scope tells apart what shares no cache.
func (p *prefixes) hash(scope uint64, prompt []byte) (b beginnings) {
	hash, start := scope, 0
	for end := firstBlock; end <= len(prompt) && b.n < maxLengths; end += doubling(end) / 4 {
		hash = mix(hash ^ maphash.Bytes(p.seed, prompt[start:end]))
		b.hashes[b.n], b.lengths[b.n] = hash, end
		b.n++
		start = end
	}
	return b
}

// doubling returns the length at which the doubling began that a length is in.
func doubling(length int) int {
	from := firstBlock
	for 2*from <= length {
		from *= 2
	}
	return from
}

// mix is the finalizer of splitmix64: each bit of the result depends on each bit of h.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// familyOf returns the family of a prompt, and records its beginnings. found returns the key of a new family.
func (p *prefixes) familyOf(b *beginnings, length int, found func(hash uint64) (family uint64)) (family uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared, belongs := 0, false
	for i := b.n - 1; i >= 0; i-- {
		if known, ok := p.find(b.hashes[i]); ok {
			shared, family, belongs = i+1, known, minShare*b.lengths[i] >= length
			break
		}
	}
	if !belongs {
		family = found(b.hashes[b.n-1])
	}
	for _, hash := range b.hashes[shared:b.n] {
		p.put(hash, family)
	}
	return family
}

func (p *prefixes) find(hash uint64) (family uint64, found bool) {
	if family, found = p.recent[hash]; found {
		return family, true
	}
	if family, found = p.older[hash]; found {
		p.put(hash, family)
	}
	return family, found
}

func (p *prefixes) put(hash, family uint64) {
	if len(p.recent) >= knownPrefixes {
		p.older, p.recent = p.recent, make(map[uint64]uint64, knownPrefixes)
	}
	p.recent[hash] = family
}

// Prefix returns the Prefix of a prompt, by its bytes in the request. Prompts with different salts share no cache. The
// Prefix is zero if the model's backends are not chosen by it, and for prompts that are too short to be cached.
func (m *Model) Prefix(salt, prompt []byte) Prefix {
	if !m.steers() || len(prompt) < firstBlock {
		return Prefix{}
	}
	prompt = prompt[:min(len(prompt), maxPrefix)]
	b := m.fleet.prefixes.hash(m.scope(salt), prompt)
	return Prefix{m.fleet.prefixes.familyOf(&b, len(prompt), m.foundFamily), true}
}

// KeyPrefix returns the Prefix of the prompts for which clients send a key, whatever they begin with.
func (m *Model) KeyPrefix(salt []byte, key string) Prefix {
	if !m.steers() {
		return Prefix{}
	}
	b := beginnings{n: 1}
	b.hashes[0] = mix(^m.scope(salt) ^ maphash.String(m.fleet.prefixes.seed, key)) // the beginning of no prompt
	return Prefix{m.fleet.prefixes.familyOf(&b, 0, m.foundFamily), true}
}

// steers reports whether the model's backends are chosen by the prompt.
func (m *Model) steers() bool {
	return len(m.backends) >= 2 && m.config.Balance == config.BalancePrefix
}

// scope returns what tells apart the prompts that share no cache.
func (m *Model) scope(salt []byte) uint64 {
	return mix(maphash.String(m.fleet.prefixes.seed, m.config.ID) ^ maphash.Bytes(m.fleet.prefixes.seed, salt))
}

// foundFamily returns the key of a new family, made of a hash.
func (m *Model) foundFamily(hash uint64) (family uint64) {
	fewest := int64(math.MaxInt64)
	for i := range uint64(foundingKeys) {
		key := mix(hash + i)
		if n := m.backendOf(key).recent.Load(); n < fewest {
			family, fewest = key, n
		}
	}
	return family
}

// backendOf returns the backend of a family when none has too much load: a ready one, if there is any.
func (m *Model) backendOf(family uint64) *Backend {
	var best *Backend
	var most uint64
	bestReady := false
	for _, b := range m.backends {
		ready, weight := b.is(Ready), m.fleet.prefixes.weight(family, b)
		if best == nil || ready && !bestReady || ready == bestReady && weight > most {
			best, most, bestReady = b, weight, ready
		}
	}
	return best
}

// weight is the rendezvous hash of a family and a backend.
func (p *prefixes) weight(family uint64, b *Backend) uint64 {
	return mix(family ^ maphash.String(p.seed, b.Name))
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
	over    bool   // it is passed over because of its load
	weight  uint64 // the higher the better, of those that are not passed over
}

// sortCandidates sorts the best first: by the prefix if there is one, and else by load.
func (m *Model) sortCandidates(all []candidate, p Prefix) {
	// Shuffling and the stable sort distribute attempts over equal candidates.
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if p.known {
		m.weigh(all, p)
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		switch {
		case a.penalty != b.penalty:
			return cmp.Compare(a.penalty, b.penalty)
		case a.over != b.over:
			if a.over {
				return 1
			}
			return -1
		case a.over:
			return cmp.Compare(a.load, b.load)
		default:
			return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.load, b.load))
		}
	})
}

// weigh sets the weights by rendezvous hashing, and passes over those that have too much load, of the candidates that may
// get the request. One of them is always left, since one has at most the mean.
func (m *Model) weigh(all []candidate, p Prefix) {
	best := slices.MinFunc(all, func(a, b candidate) int { return cmp.Compare(a.penalty, b.penalty) })
	load, recent, n := int64(1), int64(0), int64(0) // with the new request
	for i := range all {
		c := &all[i]
		c.weight = m.fleet.prefixes.weight(p.family, c.backend)
		if c.penalty == best.penalty && c.backend.Breaker() != breaker.Open {
			load, recent, n = load+c.load, recent+c.backend.recent.Load(), n+1
		}
	}
	if n == 0 {
		return
	}
	most := (load*maxLoadPercent + 100*n - 1) / (100 * n) // rounded up
	for i := range all {
		own := all[i].load + 1
		much := own*n > load+minExcess*n || all[i].backend.recent.Load()*n*100 > recent*maxSharePercent
		all[i].over = own > most && much
	}
}
