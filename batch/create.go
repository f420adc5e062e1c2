package batch

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/wait"
	"basegate/proxy"
)

// maxCreateBody limits the body of POST /v1/batches, in bytes. The longest metadata has 110,592, with each character as two escapes.
const maxCreateBody = 128 << 10

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
var endpoints = []string{proxy.CompletionsPath, proxy.LoglikelihoodPath, proxy.ChatPath}

// createBatch serves POST /v1/batches.
func (s *Service) createBatch(c *proxy.ExtensionCall) error {
	settings := s.settings.Load()
	limit := min(maxCreateBody, settings.MaxBodyBytes)
	body, err := io.ReadAll(io.LimitReader(c.Request.Body, limit+1))
	switch {
	case err != nil:
		return err
	case int64(len(body)) > limit:
		return apierr.BodyTooLarge(limit)
	}
	b, err := parseBatch(body, s.Endpoints(), settings.Replay)
	if err == nil {
		err = apierr.RefuseReplay(c.Request.Header, "the lines of a batch are replayed by replay: true in its body")
	}
	if err == nil {
		err = apierr.RefuseReceipt(c.Request.Header, "the lines of a batch get no receipts; send a request of its own for each answer that needs one")
	}
	if err != nil {
		return err
	}
	b.run = c.Run
	sum := sha256.Sum256(body)
	if b, err = s.create(c.Request.Context(), c.Account, b, originOf(c, sum[:])); err != nil {
		return err
	}
	if err := s.readErrors(c.Request.Context(), &b); err != nil { // of one that was created before
		return err
	}
	return sendJSON(c, b.toObject())
}

// create creates a batch of an account, and returns it. If the client has sent the same request before, it returns the
// batch of that one, unless only an SDK says that it is the same and that batch was cancelled since.
func (s *Service) create(ctx context.Context, account string, b Batch, from origin) (Batch, error) {
	s.complete(&b, account, from.key)
	created := b
	err := s.createOnce(ctx, from, func(ctx context.Context, tx database.Tx, id string) (err error) {
		if created, err = findBatch(ctx, tx, account, id); err == nil && !from.named && created.cancelled() {
			err = sql.ErrNoRows
		}
		return err
	}, func(ctx context.Context, tx database.Tx) (string, error) {
		created = b
		if err := s.checkInput(ctx, tx, &b); err != nil {
			return "", err
		}
		return b.ID, s.addBatch(ctx, tx, &b)
	})
	if err != nil {
		return Batch{}, err
	}
	wait.Wake(s.created)
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
	input, err := findFile(ctx, tx, b.Account, proxy.OnlyText(b.InputFile), s.now())
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

// Order is a batch that an account creates of one of its files.
type Order struct {
	Account, Key string
	InputFile    string
	Endpoint     string
	Window       string
	Once         string // orders of the key with the same value within 24 hours create one batch
}

// CreateOf creates a batch, and returns its id.
func (s *Service) CreateOf(ctx context.Context, o Order) (id string, err error) {
	b := Batch{InputFile: o.InputFile, Endpoint: o.Endpoint, Window: o.Window}
	if err := b.checkChoices(s.Endpoints()); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{o.InputFile, o.Endpoint, o.Window}, "\x00")))
	created, err := s.create(ctx, o.Account, b, namedOrigin(o.Key, "console", o.Once, sum[:]))
	return created.ID, err
}

// Windows returns the completion windows.
func Windows() (names []string) {
	for _, w := range windows {
		names = append(names, w.name)
	}
	return names
}

// checkChoices returns an error if the endpoint is not one of those served, or there is no such completion window.
func (b *Batch) checkChoices(served []string) error {
	if err := checkEndpoint(b.Endpoint, served); err != nil {
		return err
	}
	return checkWindow(b.Window)
}

func checkEndpoint(endpoint string, served []string) error {
	if slices.Contains(served, endpoint) {
		return nil
	}
	expected := strings.Join(served, " or ")
	if slices.Contains(endpoints, endpoint) {
		expected += ", since no model here has a chat template"
	}
	return apierr.InvalidField("endpoint", fmt.Sprintf("endpoint: got %q; expected %s", apierr.Clip(endpoint), expected))
}

func checkWindow(window string) error {
	if names := Windows(); !slices.Contains(names, window) {
		return apierr.InvalidField("completion_window", fmt.Sprintf("completion_window: got %q; expected one of %s", apierr.Clip(window), strings.Join(names, ", ")))
	}
	return nil
}

// createMembers are the members of a new batch, the required ones first.
var createMembers = []string{"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", "replay"}

// parseBatch reads the body of a new batch as strictly as that of a completion: unknown and repeated names are errors.
// served are the endpoints that it may name, and replays reports whether lines may be answered by kept responses.
func parseBatch(body []byte, served []string, replays bool) (b Batch, err error) {
	members, err := proxy.Members(body)
	if err != nil {
		return Batch{}, err
	}
	for _, m := range members {
		switch m.Name {
		case "input_file_id":
			b.InputFile, err = m.Text()
		case "endpoint":
			if b.Endpoint, err = m.Text(); err == nil {
				err = checkEndpoint(b.Endpoint, served)
			}
		case "completion_window":
			if b.Window, err = m.Text(); err == nil {
				err = checkWindow(b.Window)
			}
		case "metadata":
			b.Metadata, err = metadataOf(m)
		case "output_expires_after":
			b.outputKeep, err = expiryOf(m)
		case "replay":
			b.replay, err = replayOf(m, replays)
		default:
			err = proxy.UnknownMember(m.Name, createMembers)
		}
		if err != nil {
			return Batch{}, err
		}
	}
	for _, name := range createMembers[:3] {
		if !slices.ContainsFunc(members, func(m proxy.Member) bool { return m.Name == name }) {
			return Batch{}, apierr.InvalidField(name, name+" is missing")
		}
	}
	return b, nil
}

// metadataOf returns the value as it will be shown; nil for null.
func metadataOf(m proxy.Member) ([]byte, error) {
	if m.Type == gjson.Null {
		return nil, nil
	}
	if !m.IsObject() {
		return nil, m.Invalid("expected an object of strings")
	}
	pairs := m.Map()
	if len(pairs) > maxMetadata {
		return nil, m.Invalid("got more than %d pairs; expected at most %[1]d", maxMetadata)
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		switch value := pairs[name]; {
		case value.Type != gjson.String:
			return nil, m.Invalid("the value of %q is no string", apierr.Clip(name))
		case utf8.RuneCountInString(name) > maxMetadataName:
			return nil, m.Invalid("a name is longer than %d characters", maxMetadataName)
		case utf8.RuneCountInString(value.Str) > maxMetadataValue:
			return nil, m.Invalid("the value of %q is longer than %d characters", apierr.Clip(name), maxMetadataValue)
		}
	}
	value := jsontext.Value(m.Raw)
	return value, value.Compact()
}

// replayOf returns the value, which must not be true where no responses are kept; false for null.
func replayOf(m proxy.Member, offered bool) (bool, error) {
	switch {
	case m.Type != gjson.Null && !m.IsBool():
		return false, m.Invalid("expected true or false")
	case m.Bool() && !offered:
		return false, m.Invalid("responses are not kept on this gateway (replay.enabled); remove it")
	}
	return m.Bool(), nil
}

// expiryOf returns the seconds; 0 for null.
func expiryOf(m proxy.Member) (seconds int64, err error) {
	if m.Type == gjson.Null {
		return 0, nil
	}
	if !m.IsObject() {
		return 0, m.Invalid(`expected an object {"anchor": "created_at", "seconds": N}`)
	}
	fields := m.Map()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch text := fields[name].Raw; name {
		case "anchor":
			if fields[name].Str != "created_at" {
				return 0, m.Invalid(`anchor is "created_at"`)
			}
		case "seconds":
			if seconds, err = strconv.ParseInt(text, 10, 64); err != nil || seconds < minKeep || seconds > maxKeep {
				return 0, m.Invalid("seconds: got %s; expected an integer from %d to %d", apierr.Clip(text), minKeep, maxKeep)
			}
		default:
			return 0, m.Invalid("unknown field %q", apierr.Clip(name))
		}
	}
	if seconds == 0 {
		return 0, m.Invalid("seconds is missing")
	}
	return seconds, nil
}
