package batch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/proxy"
)

// maxCreateBody limits the body of POST /v1/batches, in bytes.
const maxCreateBody = 64 << 10

// Limits of metadata: kluster.ai's and OpenAI's.
const (
	maxMetadata      = 16
	maxMetadataName  = 64  // characters
	maxMetadataValue = 512 // characters
)

// windows are the completion windows, in seconds.
var windows = []struct {
	name    string
	seconds int64
}{
	{"1h", 3600}, {"3h", 3 * 3600}, {"6h", 6 * 3600}, {"12h", 12 * 3600}, {"24h", 24 * 3600}, {"48h", 48 * 3600}, {"7d", 7 * 24 * 3600},
}

// endpoints are the paths that a batch may name.
var endpoints = []string{"/v1/completions", "/v1/chat/completions"}

// createBatch serves POST /v1/batches.
func (s *Service) createBatch(c *proxy.ExtensionCall) error {
	body, err := io.ReadAll(io.LimitReader(c.Request.Body, maxCreateBody+1))
	switch {
	case err != nil:
		return err
	case len(body) > maxCreateBody:
		return apierr.BodyTooLarge(maxCreateBody)
	}
	b, err := parseBatch(body, s.Endpoints())
	if err == nil {
		err = apierr.RefuseReceipt(c.Request.Header, "the lines of a batch get no receipts; send a request of its own for each answer that needs one")
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if b, err = s.create(c.Request.Context(), c.Account, b, originOf(c, sum[:])); err != nil {
		return err
	}
	return s.sendBatch(c, &b)
}

// create creates a batch of an account, and returns it. If the client has sent the same request before, it returns the
// batch of that one, unless only an SDK says that it is the same and that batch was cancelled since.
func (s *Service) create(ctx context.Context, account string, b Batch, from origin) (Batch, error) {
	s.complete(&b, account, from.key)
	var created Batch
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		earlier, err := s.repeated(ctx, tx, &from)
		if err != nil {
			return err
		}
		if earlier != "" {
			created, err = findBatch(ctx, tx, account, earlier)
			again := errors.Is(err, sql.ErrNoRows) || err == nil && !from.named && created.cancelled()
			if !again {
				return err
			}
		}
		if err := s.checkInput(ctx, tx, &b); err != nil {
			return err
		}
		if err := s.addBatch(ctx, tx, &b); err != nil {
			return err
		}
		created = b
		return s.rememberOrigin(ctx, tx, &from, b.ID)
	})
	if err != nil {
		return Batch{}, unwritable(err)
	}
	wake(s.created)
	return created, nil
}

// addBatch inserts a batch, unless its account has as many unfinished ones as it may. Writes follow each other, so no other batch
// is added meanwhile.
func (s *Service) addBatch(ctx context.Context, tx database.Tx, b *Batch) error {
	n, err := countUnfinished(ctx, tx, b.Account)
	if err != nil {
		return err
	}
	if limit := s.settings.Load().MaxUnfinished; n >= limit {
		return apierr.UnfinishedBatches(limit)
	}
	return insertBatch(ctx, tx, b)
}

// checkInput returns an error unless the input file of a new batch is one of its account's.
func (s *Service) checkInput(ctx context.Context, tx database.Tx, b *Batch) error {
	input, err := findFile(ctx, tx, b.Account, onlyText(b.InputFile), s.now())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return apierr.InvalidField("input_file_id", fmt.Sprintf("input_file_id: no file %q in this account; upload it with POST /v1/files", apierr.Clip(b.InputFile)))
	case err != nil:
		return err
	case input.Purpose != Input:
		return apierr.InvalidField("input_file_id", fmt.Sprintf(`input_file_id: the purpose of %s is %q; expected "batch"`, input.ID, input.Purpose))
	}
	return nil
}

// complete sets what the gateway decides about a new batch.
func (s *Service) complete(b *Batch, account, key string) {
	b.ID, b.Account, b.Key, b.Status, b.CreatedAt = newID("batch_"), account, key, Validating, s.now()
	for _, w := range windows {
		if w.name == b.Window {
			b.ExpiresAt = b.CreatedAt + w.seconds
		}
	}
}

// parseBatch reads the body of a new batch as strictly as that of a completion: unknown and repeated names are errors.
// served are the endpoints that it may name.
func parseBatch(body []byte, served []string) (b Batch, err error) {
	members, err := readObject(body)
	if err != nil {
		return Batch{}, err
	}
	for _, m := range members {
		if m.repeated {
			return Batch{}, m.twice()
		}
		if bytes.Equal(m.value, []byte("null")) && m.name != "input_file_id" && m.name != "endpoint" && m.name != "completion_window" {
			continue
		}
		switch m.name {
		case "input_file_id":
			b.InputFile, err = m.text()
		case "endpoint":
			if b.Endpoint, err = m.text(); err == nil && !slices.Contains(served, b.Endpoint) {
				err = m.invalid(fmt.Sprintf("got %q; expected %s", apierr.Clip(b.Endpoint), expectedEndpoint(b.Endpoint, served)))
			}
		case "completion_window":
			b.Window, err = m.window()
		case "metadata":
			b.Metadata, err = m.metadata()
		case "output_expires_after":
			b.outputKeep, err = m.expiresAfter()
		default:
			err = apierr.UnknownField(m.name, "")
		}
		if err != nil {
			return Batch{}, err
		}
	}
	for _, required := range []struct{ name, value string }{
		{"input_file_id", b.InputFile}, {"endpoint", b.Endpoint}, {"completion_window", b.Window},
	} {
		if required.value == "" {
			return Batch{}, apierr.InvalidField(required.name, required.name+" is missing")
		}
	}
	return b, nil
}

// expectedEndpoint says which endpoints a batch may name instead of one that is not served.
func expectedEndpoint(got string, served []string) string {
	expected := strings.Join(served, " or ")
	if slices.Contains(endpoints, got) {
		return expected + ", since no model here has a chat template"
	}
	return expected
}

// member is a member of an object.
type member struct {
	name     string
	value    jsontext.Value
	repeated bool // another member before it has the name
}

// readObject reads the members of one JSON object. The decoder refuses invalid UTF-8.
func readObject(text []byte) (members []member, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	malformed := func() error {
		return apierr.MalformedJSON(d.InputOffset(), "the body is not one JSON object: it is malformed")
	}
	names := map[string]bool{}
	start, err := d.ReadToken()
	if err != nil {
		return nil, malformed()
	}
	if start.Kind() != '{' {
		return nil, apierr.MalformedJSON(0, "the body is not a JSON object")
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, malformed()
		}
		m := member{name: name.String()}
		m.repeated, names[m.name] = names[m.name], true
		value, err := d.ReadValue()
		if err != nil {
			return nil, malformed()
		}
		m.value = value.Clone()
		members = append(members, m)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, malformed()
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, apierr.MalformedJSON(d.InputOffset(), "there is something behind the object")
	}
	return members, nil
}

func (m member) invalid(what string) error { return apierr.InvalidField(m.name, m.name+": "+what) }

// twice returns the error of a member that is repeated.
func (m member) twice() error {
	return apierr.InvalidField(m.name, "the name \""+apierr.Clip(m.name)+"\" stands twice in one object; send it once")
}

// text returns the value of a string.
func (m member) text() (text string, err error) {
	if m.value.Kind() != '"' || json.Unmarshal(m.value, &text) != nil {
		return "", m.invalid("expected a string")
	}
	if text == "" {
		return "", m.invalid("got an empty string")
	}
	return text, nil
}

func (m member) window() (string, error) {
	text, err := m.text()
	if err != nil {
		return "", err
	}
	names := make([]string, len(windows))
	for i, w := range windows {
		if names[i] = w.name; w.name == text {
			return text, nil
		}
	}
	return "", m.invalid(fmt.Sprintf("got %q; expected one of %s", apierr.Clip(text), strings.Join(names, ", ")))
}

// metadata returns the value as it will be shown.
func (m member) metadata() ([]byte, error) {
	if m.value.Kind() != '{' {
		return nil, m.invalid("expected an object of strings")
	}
	pairs, err := readObject(m.value)
	if err != nil {
		return nil, err
	}
	if len(pairs) > maxMetadata {
		return nil, m.invalid(fmt.Sprintf("got %d pairs; expected at most %d", len(pairs), maxMetadata))
	}
	for _, p := range pairs {
		var value string
		switch {
		case p.repeated:
			return nil, p.twice()
		case p.value.Kind() != '"' || json.Unmarshal(p.value, &value) != nil:
			return nil, m.invalid(fmt.Sprintf("the value of %q is no string", apierr.Clip(p.name)))
		case utf8.RuneCountInString(p.name) > maxMetadataName:
			return nil, m.invalid(fmt.Sprintf("a name is longer than %d characters", maxMetadataName))
		case utf8.RuneCountInString(value) > maxMetadataValue:
			return nil, m.invalid(fmt.Sprintf("the value of %q is longer than %d characters", apierr.Clip(p.name), maxMetadataValue))
		}
	}
	if err := m.value.Compact(); err != nil {
		return nil, m.invalid("it is malformed")
	}
	return m.value, nil
}

func (m member) expiresAfter() (seconds int64, err error) {
	if m.value.Kind() != '{' {
		return 0, m.invalid(`expected an object {"anchor": "created_at", "seconds": N}`)
	}
	pairs, err := readObject(m.value)
	if err != nil {
		return 0, err
	}
	for _, p := range pairs {
		if p.repeated {
			return 0, p.twice()
		}
		switch p.name {
		case "anchor":
			if text, err := p.text(); err != nil || text != "created_at" {
				return 0, m.invalid(`anchor is "created_at"`)
			}
		case "seconds":
			if seconds, err = strconv.ParseInt(string(p.value), 10, 64); err != nil || seconds < minKeep || seconds > maxKeep {
				return 0, m.invalid(fmt.Sprintf("seconds: got %s; expected an integer from %d to %d", apierr.Clip(string(p.value)), minKeep, maxKeep))
			}
		default:
			return 0, m.invalid(fmt.Sprintf("unknown field %q", apierr.Clip(p.name)))
		}
	}
	if seconds == 0 {
		return 0, m.invalid("seconds is missing")
	}
	return seconds, nil
}
