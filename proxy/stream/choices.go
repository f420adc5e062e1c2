package stream

// choiceSet holds the choices of a stream of which something has been received. A request may ask for millions, so it grows
// with the stream and not with the request.
type choiceSet struct {
	all       []ChoiceUsage // in the order of their first events
	last      int           // position of the choice that was got last
	positions map[int]int   // by index; nil while there is only one choice
	held      int64         // approximate size of all this, in bytes
	memory    counter
}

const (
	// choiceUsageBytes is what a choice takes in all and in positions, in bytes, both of which grow by doubling.
	choiceUsageBytes = 256
	// memoryStep is the step in which memory is counted, in bytes, and what is not counted at all: a stream counts
	// nothing for its first few thousand tokens.
	memoryStep = 16 << 10
)

// get returns the choice of an index, and whether it is a new one. The pointer is valid until the next call.
func (s *choiceSet) get(index int) (u *ChoiceUsage, isNew bool) {
	if s.last < len(s.all) && s.all[s.last].Index == index {
		return &s.all[s.last], false
	}
	position, found := s.positions[index]
	if !found {
		position = len(s.all)
		s.all = append(s.all, ChoiceUsage{Index: index})
		s.held += choiceUsageBytes
		switch {
		case position == 1:
			s.positions = map[int]int{s.all[0].Index: 0, index: 1}
		case position > 1:
			s.positions[index] = position
		}
	}
	s.last = position
	return &s.all[position], !found
}

// appendText appends the text of an event to a choice.
func (s *choiceSet) appendText(u *ChoiceUsage, text []byte) {
	if len(text) == 0 {
		return
	}
	before := cap(u.text)
	u.text = append(append(u.text, text...), separator)
	s.held += int64(cap(u.text) - before)
}

// countMemory counts what has been added. Its error is a *MemoryError.
func (s *choiceSet) countMemory() error {
	if s.held < s.memory.counted+memoryStep {
		return nil
	}
	steps := (s.held - s.memory.counted) / memoryStep
	return s.memory.grow(steps * memoryStep)
}
