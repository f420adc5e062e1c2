package batch

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/tidwall/gjson"
)

// Lines that begin alike run one after another, so that vLLM's prefix cache serves them. A line is sorted by the hashes of
// the first firstBlock bytes of its prompt, of the first 2 × firstBlock bytes, and so on: two prompts that share n bytes
// have the hashes of all blocks up to n bytes in common. The hashes are of 32 bits: a collision changes only the order.
const (
	firstBlock = 64
	blocks     = 10 // the longest is of 32 KiB
)

var prefixSeed = maphash.MakeSeed()

// prefixKey is where a line is sorted.
type prefixKey [blocks]uint32

// prefixOf returns the key of a line's body.
func prefixOf(body []byte) (key prefixKey) {
	prompts := gjson.GetManyBytes(body, "prompt", "messages", "context")
	prompt := cmp.Or(prompts[0].Raw, prompts[1].Raw, prompts[2].Raw)
	for i := range key {
		n := min(firstBlock<<i, len(prompt)) // the last hash is of the whole prompt, so that equal prompts are neighbours
		key[i] = uint32(maphash.String(prefixSeed, prompt[:n])) | 1
		if n < firstBlock<<i {
			break
		}
	}
	return key
}

// checkedLine is a line that has passed the validation.
type checkedLine struct {
	lineRef
	prefix prefixKey
}

// sortByPrefix returns the lines of each model in the order of their prefixes, and numbers them. The order among equal ones is the
// file's.
func sortByPrefix(lines []checkedLine) []lineRef {
	slices.SortStableFunc(lines, func(a, b checkedLine) int {
		return cmp.Or(cmp.Compare(a.model, b.model), slices.Compare(a.prefix[:], b.prefix[:]))
	})
	refs := make([]lineRef, len(lines))
	for i := range lines {
		refs[i] = lines[i].lineRef
		refs[i].position = int64(i + 1)
	}
	return refs
}
