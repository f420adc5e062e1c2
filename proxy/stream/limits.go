package stream

import "errors"

var (
	errTooManyChoices = errors.New("the response has more choices than were asked for")
	// ErrTooLarge is returned for an event that is longer than Limits.EventBytes.
	ErrTooLarge = errors.New("the backend sent more than the gateway takes")
)

// Limits are the limits of one response. They bound what a backend can make the gateway hold in memory.
type Limits struct {
	Choices    int    // of the complete response; 0: unlimited
	EventBytes int    // of one event; 0: unlimited
	Memory     Memory // counts what is held; nil: it is not counted
}

// Memory counts the bytes that a request holds.
type Memory interface {
	Grow(bytes int64) error
	Shrink(bytes int64)
}

// MemoryError is returned if Limits.Memory refuses to grow. It wraps that error.
type MemoryError struct{ Err error }

// Error implements error.
func (e *MemoryError) Error() string { return "no memory for the response: " + e.Err.Error() }

// Unwrap returns the error of Limits.Memory.
func (e *MemoryError) Unwrap() error { return e.Err }

// counter counts in a Memory what one holder has and returns it at the end.
type counter struct {
	memory  Memory
	counted int64
}

func (c *counter) grow(bytes int64) error {
	if c.memory == nil || bytes <= 0 {
		return nil
	}
	if err := c.memory.Grow(bytes); err != nil {
		return &MemoryError{err}
	}
	c.counted += bytes
	return nil
}

func (c *counter) shrink(bytes int64) {
	if bytes = min(bytes, c.counted); bytes > 0 {
		c.memory.Shrink(bytes)
		c.counted -= bytes
	}
}

func (c *counter) release() { c.shrink(c.counted) }
