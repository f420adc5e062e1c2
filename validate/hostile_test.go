package validate_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	apierr "basegate/errors"
	"basegate/validate"
)

// numbered returns open, then what item returns for 0, 1, 2…, joined by commas, until size bytes are reached, then end.
func numbered(open, end string, size int, item func(i int) string) []byte {
	var b strings.Builder
	b.WriteString(open)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(item(i))
	}
	b.WriteString(end)
	return []byte(b.String())
}

// hostileBodies are bodies that make a careless parser work or allocate out of proportion to their size. Those with a
// param are refused with invalid_request.
var hostileBodies = []struct {
	name, param string
	make        func(size int) []byte
}{
	{"unknown fields", "n0", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a",`, `}`, size, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	}},
	{"misspelt fields", "temprature0", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a",`, `}`, size, func(i int) string { return fmt.Sprintf(`"temprature%d":0`, i) })
	}},
	{"names in an unknown field", "x", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","x":{`, `}}`, size, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	}},
	{"names in a known field", "seed", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","seed":{`, `}}`, size, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	}},
	{"token ids in logit_bias", "logit_bias", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","logit_bias":{`, `}}`, size, func(i int) string { return fmt.Sprintf(`"%d":0`, i) })
	}},
	{"options", "stream_options", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","stream_options":{`, `}}`, size, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	}},
	{"arrays in an unknown field", "x", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","x":[`, `]}`, size, func(int) string { return strings.Repeat("[", 20) + strings.Repeat("]", 20) })
	}},
	{"prompts", "", func(size int) []byte {
		return numbered(`{"model":"m","prompt":[`, `]}`, size, func(int) string { return `""` })
	}},
	{"prompts of the wrong kind", "prompt", func(size int) []byte {
		return numbered(`{"model":"m","prompt":["a",`, `]}`, size, func(int) string { return `1` })
	}},
	{"stops of the wrong kind", "stop", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","stop":[`, `]}`, size, func(int) string { return `1` })
	}},
	{"token ids", "stop_token_ids", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","stop_token_ids":[`, `]}`, size, strconv.Itoa)
	}},
	{"names in a response format", "response_format", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","response_format":{`, `}}`, size, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	}},
	{"arrays in structured outputs", "structured_outputs", func(size int) []byte {
		return numbered(`{"model":"m","prompt":"a","structured_outputs":{"choice":[`, `]}}`, size, func(int) string { return strings.Repeat("[", 20) + strings.Repeat("]", 20) })
	}},
	{"a long salt", "cache_salt", func(size int) []byte {
		return []byte(`{"model":"m","prompt":"a","cache_salt":"` + strings.Repeat(`\u0041`, size/6) + `"}`)
	}},
	{"a long name", strings.Repeat("A", 80) + "…", func(size int) []byte {
		return []byte(`{"model":"m","prompt":"a","` + strings.Repeat(`\u0041`, size/6) + `":0}`)
	}},
	{"a long model", "", func(size int) []byte {
		return []byte(`{"prompt":"a","model":"` + strings.Repeat(`\u0041`, size/6) + `"}`)
	}},
	{"a long user", "user", func(size int) []byte {
		return []byte(`{"model":"m","prompt":"a","user":"` + strings.Repeat(`\u0041`, size/6) + `"}`)
	}},
	{"a long number", "seed", func(size int) []byte {
		return []byte(`{"model":"m","prompt":"a","seed":` + strings.Repeat("1", size) + `}`)
	}},
}

func BenchmarkHostileBodies(b *testing.B) {
	for _, c := range hostileBodies {
		for _, size := range []int{1 << 20, 16 << 20} {
			body := c.make(size)
			b.Run(fmt.Sprintf("%s/%dMiB", strings.ReplaceAll(c.name, " ", "_"), size>>20), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					validate.Completion(body, defaultLimits)
				}
			})
		}
	}
}

// allocated returns the bytes that a call of f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A body of many names, many elements or a long value is validated with little memory beside its own, and by its first
// invalid field.
func TestHostileBodiesTakeLittleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, c := range hostileBodies {
		body := c.make(4 << 20)
		var err error
		got := allocated(func() { _, err = validate.Completion(body, defaultLimits) })
		if most := uint64(128 << 10); got > most && c.param != "logit_bias" || got > most+validate.MaxParserMemory {
			t.Errorf("%s: parsing 4 MiB allocated %d bytes", c.name, got)
		}
		if e := apierr.From(err); c.param == "" && err != nil || c.param != "" && (e.Code != apierr.InvalidRequest || clipped(e.Param) != c.param) {
			t.Errorf("%s: %s", c.name, result(err))
		}
	}
}

// clipped returns a field's name as the response has it.
func clipped(param string) string { return apierr.Clip(param) }

// countedMemory is a validate.Memory with a limit.
type countedMemory struct{ used, peak, limit int64 }

var errNoMemory = errors.New("no memory")

func (m *countedMemory) Grow(bytes int64) error {
	if m.used+bytes > m.limit {
		return errNoMemory
	}
	m.used += bytes
	m.peak = max(m.peak, m.used)
	return nil
}

func (m *countedMemory) Shrink(bytes int64) { m.used -= bytes }

func TestMemoryOfASchemaIsCounted(t *testing.T) {
	schema := numbered(`{"model":"m","prompt":"a","structured_outputs":{"json":{`, `}}}`, 255<<10, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	m := &countedMemory{limit: validate.MaxParserMemory}
	got := allocated(func() {
		if _, err := validate.Completion(schema, validate.Limits{Model: defaultLimits.Model, Memory: m}); err != nil {
			t.Error(result(err))
		}
	})
	if m.peak != validate.MaxParserMemory || m.used != 0 {
		t.Errorf("counted %d bytes at the peak and %d at the end, want %d and 0", m.peak, m.used, validate.MaxParserMemory)
	}
	if !raceEnabled && got > 3*validate.MaxParserMemory {
		t.Errorf("a schema of 255 KiB allocated %d bytes", got)
	}
	m.limit = 0
	if _, err := validate.Completion(schema, validate.Limits{Model: defaultLimits.Model, Memory: m}); !errors.Is(err, errNoMemory) {
		t.Errorf("without memory: got %v, want %v", err, errNoMemory)
	}
}

func TestMemoryOfTheParserIsCounted(t *testing.T) {
	biases := func(n int) []byte {
		i := -1
		return numbered(`{"model":"m","prompt":"a","logit_bias":{`, `}}`, n*len(`"100000":0,`), func(int) string {
			i++
			return fmt.Sprintf(`"%d":0`, 100_000+i)
		})
	}
	for _, c := range []struct {
		biases int
		limit  int64
		peak   int64
		want   error
	}{
		{1000, 0, 0, nil},
		{10_000, validate.MaxParserMemory, validate.MaxParserMemory, nil},
		{10_000, validate.MaxParserMemory - 1, 0, errNoMemory},
	} {
		m := &countedMemory{limit: c.limit}
		_, err := validate.Completion(biases(c.biases), validate.Limits{Model: defaultLimits.Model, Memory: m})
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || m.peak != c.peak || m.used != 0 {
			t.Errorf("%d biases with %d bytes: got %v, peak %d, %d left; want %v, peak %d, 0 left", c.biases, c.limit, err, m.peak, m.used, c.want, c.peak)
		}
	}
}
