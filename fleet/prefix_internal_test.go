package fleet

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

func TestBlocksOfAPromptAreFewAndBeginThoseOfLongerOnes(t *testing.T) {
	p, prompt := newPrefixes(), make([]byte, 1<<20)
	longest := p.hash(0, prompt)
	if n := len(longest.blocks); n > 32+9*blocksPerDoubling {
		t.Errorf("a prompt of 1 MiB has %d blocks", n)
	}
	for length := 1; length < len(prompt); length += 1 + length/50 {
		got := p.hash(0, prompt[:length])
		n := len(got.blocks)
		if got.known() != (length >= firstUnit) || got.length != length || !slices.Equal(got.blocks, longest.blocks[:n]) {
			t.Fatalf("%d bytes: %d blocks, which do not begin those of a longer prompt", length, n)
		}
		if n > 0 && length-got.blocks[n-1].end >= max(firstUnit, length/blocksPerDoubling) {
			t.Fatalf("%d bytes: the last of %d blocks ends at %d", length, n, got.blocks[n-1].end)
		}
		if want := max(1, min(length/firstUnit, 2*n)); cap(got.blocks) > want {
			t.Fatalf("%d bytes: room for %d blocks, of which %d are used", length, cap(got.blocks), n)
		}
	}
}

// plainLRU is the simplest model of a cache: its blocks with the newest last.
type plainLRU struct{ blocks []promptBlock }

func (l *plainLRU) put(hash uint64, size int) {
	l.blocks = append(slices.DeleteFunc(l.blocks, func(b promptBlock) bool { return b.hash == hash }), promptBlock{hash, size})
}

// A cache has what an LRU has of its size in bytes, at each of many steps.
func TestModelledCacheEvictsAsAnLRU(t *testing.T) {
	p := newPrefixes()
	p.maxBlocks.Store(1 << 20)
	c, random := newPrefixCache(p), rand.New(rand.NewPCG(1, 2))
	const tokens, room = 1000, 1000 * assumedPerToken
	c.begin(tokens, "", false)
	var want plainLRU
	var prompts [][]byte
	for range 20 {
		prompts = append(prompts, randomBytes(random, 100+random.IntN(700)))
	}
	for step := range 5000 {
		i := random.IntN(len(prompts))
		switch random.IntN(10) {
		case 0: // another one
			prompts[i] = randomBytes(random, 100+random.IntN(700))
		case 1, 2: // a conversation goes on
			prompts[i] = slices.Concat(prompts[i][:min(len(prompts[i]), 2000)], randomBytes(random, random.IntN(300)))
		}
		prefix := p.hash(7, prompts[i])
		found := 0
		for _, b := range prefix.blocks {
			if !slices.ContainsFunc(want.blocks, func(o promptBlock) bool { return o.hash == b.hash }) {
				break
			}
			found = b.end
		}
		if cached, _ := c.look(&prefix); cached != found {
			t.Fatalf("step %d: %d bytes of a prompt are cached, want %d", step, cached, found)
		}
		if len(prompts[i]) > room {
			continue
		}
		c.send(&prefix)
		for n, block := range slices.Backward(prefix.blocks) {
			start := 0
			if n > 0 {
				start = prefix.blocks[n-1].end
			}
			want.put(block.hash, block.end-start)
		}
		for size := sizeOf(want.blocks); size > room; size = sizeOf(want.blocks) {
			want.blocks = want.blocks[1:]
		}
		if int64(sizeOf(want.blocks)) != c.size || len(want.blocks) != len(c.index) {
			t.Fatalf("step %d: %d blocks of %d bytes, want %d of %d", step, len(c.index), c.size, len(want.blocks), sizeOf(want.blocks))
		}
	}
}

func sizeOf(blocks []promptBlock) (sum int) {
	for _, b := range blocks {
		sum += b.end
	}
	return sum
}

func randomBytes(random *rand.Rand, n int) []byte {
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(random.Uint32())
	}
	return all
}

// sentTo sends a prompt of its own for each number, of 1,000 bytes.
func sentTo(c *prefixCache, number int) (Prefix, sentPrompt) {
	prompt := make([]byte, 1000)
	binary.LittleEndian.PutUint64(prompt, uint64(number))
	p := c.shared.hash(0, prompt)
	return p, c.send(&p)
}

func isCached(c *prefixCache, p *Prefix) bool { cached, _ := c.look(p); return cached > 0 }

func TestReportedCachedTokensCorrectTheModel(t *testing.T) {
	shared := newPrefixes()
	shared.maxBlocks.Store(1 << 20)
	reported := func(n int64) Usage { return Usage{Prompt: 250, Cached: &n} }
	for name, c := range map[string]struct {
		answered bool  // the first request with the prompt has been answered when it is sent again
		report   Usage // of the second
		kept     bool  // what is older
	}{
		"all of it":                   {true, reported(240), true},
		"most of it":                  {true, reported(200), true},
		"none of it":                  {true, reported(0), false},
		"none of what is in progress": {false, reported(0), true},
		"not reported":                {true, Usage{Prompt: 250}, true},
	} {
		cache := newPrefixCache(shared)
		older, first := sentTo(cache, 1)
		cache.record(&first, reported(0))
		again, second := sentTo(cache, 2)
		if c.answered {
			cache.record(&second, reported(0))
		}
		newer, _ := sentTo(cache, 3)
		_, third := sentTo(cache, 2)
		cache.record(&third, c.report)
		if got := isCached(cache, &older); got != c.kept {
			t.Errorf("%s: what is older is kept: %t, want %t", name, got, c.kept)
		}
		if !isCached(cache, &again) || !isCached(cache, &newer) {
			t.Errorf("%s: the prompt itself, or a newer one, is gone", name)
		}
	}
}

// What was generated takes room, once, and so do prompts that read no cache.
func TestAllThatAServerComputesTakesRoom(t *testing.T) {
	shared := newPrefixes()
	shared.maxBlocks.Store(1 << 20)
	c := newPrefixCache(shared)
	_, sent := sentTo(c, 1)
	c.record(&sent, Usage{Prompt: 250, Completion: 50})
	if c.size != 1200 {
		t.Errorf("a prompt of 1000 bytes with 50 tokens of 4 bytes takes %d bytes", c.size)
	}
	longer := make([]byte, 1500)
	longer[0] = 1
	p := shared.hash(0, longer)
	sent = c.send(&p)
	c.record(&sent, Usage{Prompt: 375})
	if c.size != 1500 {
		t.Errorf("the prompt that goes on with them takes %d bytes, want 1500", c.size)
	}
	sent = c.send(&Prefix{})
	c.record(&sent, Usage{Prompt: 100, Completion: 25})
	if c.size != 2000 {
		t.Errorf("with 125 more tokens, of a prompt without a prefix, all take %d bytes, want 2000", c.size)
	}
}

func TestModelsOfCachesTakeBoundedMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	shared := newPrefixes()
	shared.maxBlocks.Store(cacheMemory / blockMemory / 4)
	var all [4]*prefixCache
	for i := range all {
		all[i] = newPrefixCache(shared)
		for number := 0; len(all[i].index) < cacheMemory/blockMemory/4-20 || number < 20_000; number++ {
			sentTo(all[i], number)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got := after.HeapAlloc - before.HeapAlloc; got > cacheMemory || got < cacheMemory/4 {
		t.Errorf("four full caches take %d bytes, want at most %d", got, cacheMemory)
	}
	if n := shared.unit.Load(); n != firstUnit {
		t.Errorf("caches of unknown size have made blocks of %d bytes", n)
	}
	all[0].begin(1<<40, "", false)
	for number := 0; shared.unit.Load() == firstUnit; number++ {
		if number > 1<<20 {
			t.Fatal("a cache that is too large for its share of memory does not make blocks larger")
		}
		sentTo(all[0], number)
	}
	p, _ := sentTo(all[0], 0)
	if cached, _ := all[0].look(&p); cached != 1000/128*128 || len(all[0].index) != len(p.blocks) || isCached(all[1], &p) {
		t.Errorf("with larger blocks, %d bytes of a prompt are cached, in %d blocks", cached, len(all[0].index))
	}
	runtime.KeepAlive(all)
}

func TestSizeOfACacheIsReadFromTheMetrics(t *testing.T) {
	const info = `vllm:cache_config_info{_block_size_resolved="True",block_size="128",enable_prefix_caching="True",engine="0",hash_block_size="16",mamba_block_size="None",num_cpu_blocks="7",num_gpu_blocks="8192",num_gpu_blocks_override="9"} 1.0
`
	for name, c := range map[string]struct {
		metrics string
		tokens  int64
		start   string
	}{
		"nothing":     {"", unknownSize, ""},
		"not numbers": {`vllm:cache_config_info{block_size="None",num_gpu_blocks="8192"} 1.0`, unknownSize, ""},
		"0.33":        {"process_start_time_seconds 1.79563383404e+09\n" + info, 1 << 20, "1.79563383404e+09"},
		"0.8.5":       {`vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="None",num_gpu_blocks="65536"} 1.0`, 1 << 20, ""},
		"two engines": {info + info, 1 << 21, ""},
		"no caching":  {`vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="65536"} 1.0`, 0, ""},
	} {
		if tokens, start := cacheSize(c.metrics); tokens != c.tokens || start != c.start {
			t.Errorf("%s: got %d tokens since %q, want %d since %q", name, tokens, start, c.tokens, c.start)
		}
	}
}
