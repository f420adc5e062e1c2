package notify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/gateway/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outbox is a Mailer that keeps what it sends, and fails for the address in failing.
type outbox struct {
	mu      sync.Mutex
	sent    []string // addresses and subjects
	failing string
}

func (*outbox) Enabled() bool { return true }

func (o *outbox) Send(_ context.Context, to, subject, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to == o.failing {
		o.failing = ""
		return errors.New("try later")
	}
	o.sent = append(o.sent, to+" "+subject)
	return nil
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func status(code int) (*http.Response, error) {
	return &http.Response{StatusCode: code, Body: http.NoBody}, nil
}

func hook(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// start returns a started Notifier, and its registry.
func start(t *testing.T, s notify.Settings, transport http.RoundTripper, mailer notify.Mailer, log *zap.Logger) (*notify.Notifier, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	n := notify.New(s, notify.Deps{
		Transport: transport, Mailer: mailer, Registry: registry, Log: log,
		Recipients: func(context.Context) ([]string, error) { return []string{"a@example.org", "b@example.org"}, nil },
	})
	n.Start(t.Context())
	return n, registry
}

func wantCount(t *testing.T, registry *prometheus.Registry, channel, outcome string, want float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := -1.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if labels := m.GetLabel(); len(labels) == 2 && labels[0].GetValue() == channel && labels[1].GetValue() == outcome {
				got = m.GetCounter().GetValue()
			}
		}
	}
	if got != want {
		t.Errorf("%s, %s: counted %v, want %v", channel, outcome, got, want)
	}
}

// golden compares text with a file of testdata; UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name string, body []byte) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Indent(&got, body, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	file := filepath.Join("testdata", name+".json")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// received returns the bodies that webhooks receive, and a transport to them.
func received(t *testing.T) (bodies chan []byte, transport roundTrip) {
	t.Helper()
	bodies = make(chan []byte, 1000)
	return bodies, func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %s with %q, %v, want a POST of JSON", r.Method, r.Header.Get("Content-Type"), err)
		}
		bodies <- body
		return status(200)
	}
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// What users write neither notifies anybody in a chat nor shows a link under another text.
func TestWebhooksReceiveTheDocumentedPayloads(t *testing.T) {
	const hostile = "<!channel> <https://evil.example|the status page> @everyone a@here @@Channel -@CHANNEL .@Here _@alice ada@lab.example.org [status](https://evil.example) **b** & `c`"
	for name, c := range map[string]struct {
		webhook string
		notice  notify.Notice
	}{
		"budget": {"https://chat.example.org/hook", notify.Notice{
			Kind: "budget_80", Text: "80 % of a budget are used", Percent: 80, Detail: "80 of 100 tokens", Subject: "acc", Time: noon,
			Complete: func(_ context.Context, n *notify.Notice) { n.Account, n.Key = "ada@example.org", "laptop" },
		}},
		"hostile key": {"https://chat.example.org/hook", notify.Notice{
			Kind: "budget_80", Text: "80 % of a budget are used", Percent: 80, Time: noon, Account: "eve@example.org", Key: hostile,
		}},
		"mattermost": {"https://chat.example.org/hooks/x", notify.Notice{Kind: "disk_low", Text: "the disk is nearly full", Time: noon}},
		"slack":      {"https://hooks.slack.com/services/x", notify.Notice{Kind: "disk_low", Text: "the disk is nearly full", Time: noon}},
		"discord":    {"https://discord.com/api/webhooks/x", notify.Notice{Kind: "disk_low", Text: "the disk is nearly full", Time: noon}},
	} {
		t.Run(name, func(t *testing.T) {
			bodies, transport := received(t)
			n, _ := start(t, notify.Settings{Webhook: hook(t, c.webhook), PublicURL: "https://gate.example.org"}, transport, new(outbox), zap.NewNop())
			defer n.Close()
			n.Notify(c.notice)
			golden(t, strings.ReplaceAll(name, " ", "_"), <-bodies)
		})
	}
	t.Run("feedback", func(t *testing.T) {
		bodies, transport := received(t)
		n, _ := start(t, notify.Settings{Feedback: hook(t, "https://chat.example.org/hook")}, transport, new(outbox), zap.NewNop())
		defer n.Close()
		n.Feedback(notify.Feedback{Time: noon, Page: "/usage", RequestID: "req_1", Message: hostile + "\n[a]: https://evil.example"})
		golden(t, "feedback", <-bodies)
	})
}

// A test message is sent at once, whatever the limits are, and its failure is returned without the address.
func TestTestMessageSaysWhatHasBecomeOfIt(t *testing.T) {
	bodies, transport := received(t)
	n, _ := start(t, notify.Settings{Webhook: hook(t, "https://chat.example.org/hook")}, transport, new(outbox), zap.NewNop())
	defer n.Close()
	for range 3 {
		if err := n.Test(t.Context(), "webhook", "root@example.org"); err != nil {
			t.Errorf("got error %v, want none", err)
		}
	}
	var got struct{ Event, Text, Account string }
	if err := json.Unmarshal(<-bodies, &got); err != nil || got.Event != "test" || got.Account != "root@example.org" || len(bodies) != 2 {
		t.Errorf("got %+v, %v and %d more, want three test messages of root@example.org", got, err, len(bodies))
	}
	if err := n.Test(t.Context(), "feedback", "root@example.org"); err == nil {
		t.Error("a webhook that there is not: got no error")
	}
	n.Reload(notify.Settings{Feedback: hook(t, "https://chat.example.org/hook?key=secret")})
	if err := n.Test(t.Context(), "feedback", "root@example.org"); err != nil || len(bodies) != 3 {
		t.Errorf("feedback: got error %v and %d messages, want one more", err, len(bodies))
	}
	failing, _ := start(t, notify.Settings{Webhook: hook(t, "https://chat.example.org/hook?key=secret")},
		roundTrip(func(*http.Request) (*http.Response, error) { return status(404) }), new(outbox), zap.NewNop())
	defer failing.Close()
	if err := failing.Test(t.Context(), "webhook", "root@example.org"); err == nil || !strings.Contains(err.Error(), "404") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got error %v, want one with the status and without the address", err)
	}
}

func TestContentIsNotLongerThanDiscordTakes(t *testing.T) {
	bodies, transport := received(t)
	n, _ := start(t, notify.Settings{Feedback: hook(t, "https://discord.com/x")}, transport, new(outbox), zap.NewNop())
	defer n.Close()
	n.Feedback(notify.Feedback{Message: strings.Repeat("*ä", 2500)})
	var got struct{ Content string }
	if err := json.Unmarshal(<-bodies, &got); err != nil {
		t.Fatal(err)
	}
	if length := utf8.RuneCountInString(got.Content); length > 2000 || length < 1990 || !strings.HasSuffix(got.Content, "…") {
		t.Errorf("got %d characters that end with %.20q, want just under 2,000 and …", length, got.Content[len(got.Content)-20:])
	}
}

// A flood is a message a second, and the next one says how many are not sent.
func TestWebhooksGetAMessageASecondThatCountsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies, transport := received(t)
		n, registry := start(t, notify.Settings{
			Webhook: hook(t, "https://hooks.example.org/x"), Feedback: hook(t, "https://chat.example.org/y"),
		}, transport, new(outbox), zap.NewNop())
		defer n.Close()
		n.Feedback(notify.Feedback{Message: "the first"})
		synctest.Wait()
		for range 400 {
			n.Feedback(notify.Feedback{Message: "one of 400"})
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if len(bodies) != 1 {
			t.Fatalf("in the first second: got %d messages, want 1", len(bodies))
		}
		<-bodies
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(bodies) != 1 {
			t.Fatalf("after the flood: got %d messages, want 1 for all of it", len(bodies))
		}
		if body := string(<-bodies); !strings.Contains(body, "one of 400 (and 399 more)") {
			t.Errorf("got %s, want the number of the others", body)
		}
		wantCount(t, registry, "feedback", "dropped", 399)

		for i := range 30 { // the limit of all events together is 20 at once
			n.Notify(notify.Notice{Kind: "boot_failed", Text: fmt.Sprint("event ", i), Subject: fmt.Sprint(i)})
			if i == 0 {
				synctest.Wait()
			}
		}
		for i := range 20 {
			synctest.Wait()
			if len(bodies) != i+1 {
				t.Fatalf("after %d seconds: got %d messages, want %d", i, len(bodies), i+1)
			}
			time.Sleep(time.Second)
		}
		if first := string(<-bodies); strings.Contains(first, "more)") {
			t.Errorf("got %s, want the first event alone", first)
		}
		if second := string(<-bodies); !strings.Contains(second, "event 1 (and 10 more)") {
			t.Errorf("got %s, want the number of those that were dropped", second)
		}
	})
}

func TestFailedAttemptsAreRetriedAFewTimes(t *testing.T) {
	for name, c := range map[string]struct {
		answers  []int // 0: the connection fails
		attempts int
		outcome  string
	}{
		"success after failures": {[]int{0, 503, 200}, 3, "sent"},
		"too many requests":      {[]int{429, 204}, 2, "sent"},
		"down":                   {[]int{500, 500, 500, 500, 200}, 4, "failed"},
		"refused":                {[]int{404, 200}, 1, "failed"},
		"redirect":               {[]int{307, 200}, 1, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := 0
				transport := roundTrip(func(r *http.Request) (*http.Response, error) {
					io.Copy(io.Discard, r.Body)
					made++
					if code := c.answers[made-1]; code != 0 {
						return status(code)
					}
					return nil, errors.New("connection refused")
				})
				n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x")}, transport, new(outbox), zap.NewNop())
				defer n.Close()
				n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
				time.Sleep(time.Minute) // of the bubble's clock
				synctest.Wait()
				if made != c.attempts {
					t.Errorf("got %d attempts, want %d", made, c.attempts)
				}
				wantCount(t, registry, "webhook", c.outcome, 1)
			})
		})
	}
}

func TestWebhookThatHangsBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		mails := new(outbox)
		n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x"), Mail: true}, transport, mails, zap.NewNop())
		begin := time.Now()
		n.Notify(notify.Notice{Kind: "boot_failed", Text: "the boot has failed", Subject: "m/b"})
		if took := time.Since(begin); took != 0 {
			t.Errorf("Notify took %v, want no time", took)
		}
		synctest.Wait()
		if len(mails.sent) != 2 {
			t.Errorf("while the webhook hangs: got mails %q, want two", mails.sent)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		n.Close()
		if got := testutil.ToFloat64(counter(t, registry, "webhook", "failed")); got != 1 {
			t.Errorf("got %v failed notifications, want 1", got)
		}
	})
}

// counter returns a collector with one series of the metric.
func counter(t *testing.T, registry *prometheus.Registry, channel, outcome string) prometheus.Collector {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var value float64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == channel && m.GetLabel()[1].GetValue() == outcome {
				value = m.GetCounter().GetValue()
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "value"})
	g.Set(value)
	return g
}

func TestRepetitionsAndFloodsAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		transport := roundTrip(func(*http.Request) (*http.Response, error) { sent++; return status(200) })
		n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x")}, transport, new(outbox), zap.NewNop())
		defer n.Close()
		for range 5 {
			n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
		}
		synctest.Wait()
		if sent != 1 {
			t.Errorf("five notices about the same: got %d sent, want 1", sent)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
		synctest.Wait()
		if sent != 2 {
			t.Errorf("the same notice after eleven minutes: got %d sent, want 2", sent)
		}
		for i := range 1000 {
			n.Notify(notify.Notice{Kind: "boot_failed", Subject: fmt.Sprint(i)})
			synctest.Wait()
		}
		if sent > 2+20 {
			t.Errorf("a flood of 1,000 notices: got %d sent, want at most 20", sent-2)
		}
		if got := testutil.ToFloat64(counter(t, registry, "webhook", "dropped")); got < 900 {
			t.Errorf("got %v notifications counted as dropped, want the rest of the flood", got)
		}
	})
}

func TestMailIsRetriedForThoseWhoDoNotHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mails := &outbox{failing: "a@example.org"}
		n, registry := start(t, notify.Settings{Mail: true}, roundTrip(nil), mails, zap.NewNop())
		defer n.Close()
		n.Notify(notify.Notice{Kind: "disk_low", Text: "the disk is nearly full", Subject: "disk"})
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"b@example.org Basegate: the disk is nearly full", "a@example.org Basegate: the disk is nearly full"}
		if fmt.Sprint(mails.sent) != fmt.Sprint(want) {
			t.Errorf("got mails %q, want %q", mails.sent, want)
		}
		wantCount(t, registry, "mail", "sent", 1)
	})
}

func TestAddressOfTheWebhookIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		transport := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })
		n, _ := start(t, notify.Settings{Webhook: hook(t, "https://user:hunter2@hooks.example.org/T0/letmein")}, transport, new(outbox), zap.New(core))
		defer n.Close()
		n.Notify(notify.Notice{Kind: "disk_low", Subject: "disk"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if logs.Len() != 1 {
			t.Fatalf("got %d log entries, want one about the failure", logs.Len())
		}
		for _, e := range logs.All() {
			if text := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(text, "letmein") || strings.Contains(text, "hunter2") || strings.Contains(text, "hooks.example.org") {
				t.Errorf("the log has the address of the webhook: %s", text)
			}
		}
	})
}
