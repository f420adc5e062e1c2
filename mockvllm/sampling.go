package mockvllm

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	greedyBelow       = 1e-5 // vLLM treats a lower temperature as zero
	lowestTemperature = 0.01 // vLLM raises a lower temperature to this
)

type sampling struct {
	Temperature float64         `json:"temperature"`
	TopP        float64         `json:"top_p"`
	TopK        int             `json:"top_k"` // 0 or less means all
	MinP        float64         `json:"min_p"`
	Presence    float64         `json:"presence_penalty"`
	Frequency   float64         `json:"frequency_penalty"`
	Repetition  float64         `json:"repetition_penalty"`
	Bias        map[int]float64 `json:"logit_bias"`        // by token
	Allowed     []int           `json:"allowed_token_ids"` // empty means all
	Seed        *int64          `json:"seed"`
}

func (p *sampling) greedy() bool { return p.Temperature < greedyBelow }

func (p *sampling) penalises() bool {
	return p.Presence != 0 || p.Frequency != 0 || p.Repetition != 1
}

// candidate is a token with a weight that need not be normalised.
type candidate struct {
	id     int
	weight float64
}

// sampler draws the tokens of one output. It applies parameters in the order of vLLM's V1 engine: allowed tokens,
// bias, penalties, temperature, min_p, top_k, top_p.
type sampler struct {
	sampling
	random   *rand.Rand
	inPrompt []bool // nil without penalties
	counts   []int  // occurrences of each token in the output so far; nil without penalties
	logits   []float64
	scratch  []candidate // reused by candidates
}

// newSampler returns the sampler of a prompt's output number child. With a seed it is reproducible; each child gets a
// seed of its own.
func newSampler(p sampling, prompt []int, child, vocabulary int) *sampler {
	s := &sampler{sampling: p, logits: make([]float64, vocabulary), scratch: make([]candidate, 0, vocabulary)}
	if s.Temperature < lowestTemperature && !s.greedy() {
		s.Temperature = lowestTemperature
	}
	low, high := rand.Uint64(), rand.Uint64()
	if p.Seed != nil && *p.Seed != -1 {
		low, high = uint64(*p.Seed)+uint64(child), 0x9e3779b97f4a7c15
	}
	s.random = rand.New(rand.NewPCG(low, high))
	if p.penalises() {
		s.inPrompt = make([]bool, vocabulary)
		s.counts = make([]int, vocabulary)
		for _, id := range prompt {
			s.inPrompt[id] = true
		}
	}
	return s
}

// draw samples the next token; banned tokens cannot be drawn.
func (s *sampler) draw(probabilities []float64, banned []int) int {
	// Shifted so that likely tokens have positive logits, as in a neural network: repetition_penalty divides positive
	// logits and multiplies negative ones.
	shift := math.Log(float64(len(probabilities)))
	for id, p := range probabilities {
		s.logits[id] = math.Log(p) + shift
		if len(s.Allowed) > 0 && !slices.Contains(s.Allowed, id) || slices.Contains(banned, id) {
			s.logits[id] = math.Inf(-1)
		}
	}
	for id, bias := range s.Bias {
		s.logits[id] += min(100, max(-100, bias))
	}
	s.applyPenalties()
	for id, logit := range s.logits {
		// As 32-bit floats: a repetition_penalty close to zero makes logits infinite, and if every token is masked all of
		// them are. Then no weight could be computed.
		s.logits[id] = min(max(logit, -math.MaxFloat32), math.MaxFloat32)
	}
	var id int
	if s.greedy() {
		id = slices.Index(s.logits, slices.Max(s.logits))
	} else {
		id = s.pickWeighted(s.candidates())
	}
	if s.counts != nil {
		s.counts[id]++
	}
	return id
}

// applyPenalties lowers tokens that have occurred: repetition_penalty counts the prompt too, the others only the
// output.
func (s *sampler) applyPenalties() {
	if s.counts == nil {
		return
	}
	for id, count := range s.counts {
		if count == 0 && !s.inPrompt[id] {
			continue
		}
		if s.logits[id] > 0 {
			s.logits[id] /= s.Repetition
		} else {
			s.logits[id] *= s.Repetition
		}
		if count > 0 {
			s.logits[id] -= s.Frequency*float64(count) + s.Presence
		}
	}
}

// candidates returns the tokens that temperature, min_p, top_k and top_p leave.
func (s *sampler) candidates() []candidate {
	top := slices.Max(s.logits)
	kept := s.scratch[:0]
	total := 0.0
	for id, logit := range s.logits {
		weight := math.Exp((logit - top) / s.Temperature)
		if weight > 0 && weight >= s.MinP { // the most likely token has weight 1
			kept = append(kept, candidate{id, weight})
			total += weight
		}
	}
	if s.TopK <= 0 && s.TopP == 1 {
		return kept
	}
	slices.SortFunc(kept, byWeight)
	if s.TopK > 0 && s.TopK < len(kept) {
		for _, c := range kept[s.TopK:] {
			total -= c.weight
		}
		kept = kept[:s.TopK]
	}
	sum := 0.0
	for i, c := range kept {
		if sum += c.weight; sum >= s.TopP*total {
			return kept[:i+1] // including the one that crosses top_p
		}
	}
	return kept
}

// byWeight orders candidates by descending weight, then by id, so that the order is deterministic.
func byWeight(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id))
}

// mostLikely returns the k heaviest candidates, heaviest first.
func mostLikely(from []candidate, k int) []candidate {
	var top []candidate
	for _, c := range from {
		if at, _ := slices.BinarySearchFunc(top, c, byWeight); at < k {
			top = slices.Insert(top, at, c)
			top = top[:min(k, len(top))]
		}
	}
	return top
}

func (s *sampler) pickWeighted(from []candidate) int {
	total := 0.0
	for _, c := range from {
		total += c.weight
	}
	point := s.random.Float64() * total
	for _, c := range from {
		point -= c.weight
		if point < 0 {
			return c.id
		}
	}
	return from[len(from)-1].id // reached through rounding errors
}
