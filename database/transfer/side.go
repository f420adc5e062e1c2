package transfer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// side is one of the two databases. Its methods are called by one goroutine.
type side interface {
	// describe returns the place, without a password.
	describe() string

	// source returns how rows of a table are read.
	source(t *table) *source

	// refuseUnfinished returns an error if the database has what only gateways on its engine can finish.
	refuseUnfinished(ctx context.Context) error

	// query calls row with each row of a query. The values are of that call only.
	query(ctx context.Context, text string, args []any, row func(values []any) error) error

	// write inserts rows and records the progress, in one transaction.
	write(ctx context.Context, t *table, rows [][]any, p progress) error

	// loadState returns the state of an unfinished copy, or nil.
	loadState(ctx context.Context) (*state, error)

	// begin records the source of a copy that begins.
	begin(ctx context.Context, s *state) error

	// prepare makes the target ready for the rows of a source.
	prepare(ctx context.Context, from side) error

	// finish computes what is not copied, removes the state, and makes the target ready for a gateway.
	finish(ctx context.Context, rows map[string]progress) error

	// refuseGateway returns an error if a gateway serves from the database.
	refuseGateway(ctx context.Context) error

	// generation returns numbers that change with every start of a gateway and with changes of keys.
	generation(ctx context.Context) (string, error)

	close() error
}

// readPage returns the rows that follow a key, and the key of the last one. The rows are normalized.
func readPage(ctx context.Context, from side, t *table, after []any) (rows [][]any, last []any, err error) {
	s := from.source(t)
	err = from.query(ctx, t.query(s, after == nil), after, func(values []any) error {
		row := make([]any, len(t.columns))
		for i, c := range t.columns {
			if row[i], err = normalize(values[i], c.kind); err != nil {
				return fmt.Errorf("column %s: %w", c.name, err)
			}
		}
		last = make([]any, len(s.key))
		for i, c := range s.key {
			if last[i], err = convert(values[len(t.columns)+i], c.kind); err != nil {
				return fmt.Errorf("key %s: %w", c.name, err)
			}
		}
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	return rows, last, nil
}

var errType = errors.New("the value has another type than the column")

// convert returns a value that a driver has read as an int64, a bool, a string, a []byte or nil.
func convert(value any, k kind) (any, error) {
	if value == nil {
		return nil, nil
	}
	switch k {
	case integer, address:
		switch n := value.(type) {
		case int64:
			return n, nil
		case int32:
			return int64(n), nil
		case string: // a ctid
			return n, nil
		}
	case boolean:
		switch b := value.(type) {
		case bool:
			return b, nil
		case int64:
			return b != 0, nil
		}
	case text:
		switch s := value.(type) {
		case string:
			return s, nil
		case []byte:
			return string(s), nil
		}
	case bytes:
		switch b := value.(type) {
		case []byte:
			return append([]byte{}, b...), nil
		case string:
			return []byte(b), nil
		}
	}
	return nil, fmt.Errorf("%w: %T", errType, value)
}

// nulSymbol stands for U+0000, which PostgreSQL does not store in texts. The ledger writes it too.
const nulSymbol = "␀"

// normalize converts a value to what both engines store: texts are UTF-8 without U+0000.
func normalize(value any, k kind) (any, error) {
	value, err := convert(value, k)
	if s, ok := value.(string); ok {
		value = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", nulSymbol), "\uFFFD")
	}
	return value, err
}

// progress is how far the copy of a table is.
type progress struct {
	Rows     int64  `json:"rows"`
	Checksum uint64 `json:"checksum"` // the sum of the rows' hashes, so that their order does not matter
	Tokens   int64  `json:"tokens"`   // of requests
	Last     string `json:"last"`     // the key of the last row, encoded; empty at the beginning
	Done     bool   `json:"done"`
}

// add counts rows.
func (p *progress) add(t *table, rows [][]any) {
	for _, row := range rows {
		h := fnv.New64a()
		for i, value := range row {
			switch v := value.(type) {
			case nil:
				_, _ = h.Write([]byte{0})
			case int64:
				_, _ = h.Write(strconv.AppendInt([]byte{1}, v, 10))
			case bool:
				_, _ = h.Write(strconv.AppendBool([]byte{2}, v))
			case string:
				_, _ = h.Write(append(strconv.AppendInt([]byte{3}, int64(len(v)), 10), ':'))
				_, _ = h.Write([]byte(v))
			case []byte:
				_, _ = h.Write(append(strconv.AppendInt([]byte{4}, int64(len(v)), 10), ':'))
				_, _ = h.Write(v)
			}
			if n, ok := value.(int64); ok && t.into == summed && strings.HasSuffix(t.columns[i].name, "_tokens") {
				p.Tokens += n
			}
		}
		p.Checksum += h.Sum64()
	}
	p.Rows += int64(len(rows))
}

// join adds the rows of another table that are written to the same one.
func (p *progress) join(other progress) {
	p.Rows, p.Checksum, p.Tokens = p.Rows+other.Rows, p.Checksum+other.Checksum, p.Tokens+other.Tokens
}

// equal reports whether two tables have the same rows.
func (p progress) equal(other progress) bool {
	return p.Rows == other.Rows && p.Checksum == other.Checksum && p.Tokens == other.Tokens
}

// encodeKey encodes a key for the state of a copy: texts may hold what a text of PostgreSQL cannot.
func encodeKey(key []any) (string, error) {
	fields := make([]string, len(key))
	for i, value := range key {
		switch v := value.(type) {
		case int64:
			fields[i] = "i" + strconv.FormatInt(v, 10)
		case string:
			fields[i] = "t" + base64.StdEncoding.EncodeToString([]byte(v))
		case []byte:
			fields[i] = "x" + base64.StdEncoding.EncodeToString(v)
		default:
			return "", fmt.Errorf("encode a key: %w: %T", errType, value)
		}
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("encode a key: %w", err)
	}
	return string(encoded), nil
}

// decodeKey decodes the result of encodeKey; nil at the beginning.
func decodeKey(encoded string) (key []any, err error) {
	if encoded == "" {
		return nil, nil
	}
	var fields []string
	if err := json.Unmarshal([]byte(encoded), &fields); err != nil {
		return nil, fmt.Errorf("decode a key: %w", err)
	}
	for _, field := range fields {
		var value any
		switch {
		case strings.HasPrefix(field, "i"):
			value, err = strconv.ParseInt(field[1:], 10, 64)
		case strings.HasPrefix(field, "t"):
			var b []byte
			b, err = base64.StdEncoding.DecodeString(field[1:])
			value = string(b)
		case strings.HasPrefix(field, "x"):
			value, err = base64.StdEncoding.DecodeString(field[1:])
		default:
			err = errType
		}
		if err != nil {
			return nil, fmt.Errorf("decode a key: %w", err)
		}
		key = append(key, value)
	}
	return key, nil
}
