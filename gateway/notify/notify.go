// Package notify notifies operators by webhook and mail of events that need them: budgets, breakers, boots and disks. It sends
// them the feedback of users too.
//
// Notify never blocks and never fails: each channel has a bounded queue and a goroutine of its own, which makes a few
// attempts. Notices are limited; those that are not sent are counted, and the next message says how many. Which events are
// notices is left to the gateway.
package notify

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"basegate/internal/wait"
)

const (
	queueLength    = 64
	feedbackLength = 1                // one message stands for all that arrive while it waits
	webhookPause   = time.Second      // between two messages to a webhook
	repeatInterval = 10 * time.Minute // between two notices of one kind and subject
	attempts       = 4
	attemptTimeout = 10 * time.Second
)

// Bursts of notices are limited to burst, and in the long run to one every interval.
const (
	burst    = 20
	interval = 30 * time.Second
)

// firstPause is the pause after the first failed attempt. Each further pause is four times as long.
const firstPause = time.Second

// Notice is something that operators should know.
type Notice struct {
	Kind    string    `json:"-"` // of the event, such as "breaker_opened"
	Text    string    `json:"-"` // one line, for people
	Time    time.Time `json:"-"`
	Model   string    `json:"model,omitempty"` // fields that do not apply are empty
	Backend string    `json:"backend,omitempty"`
	Account string    `json:"account,omitempty"` // e-mail address
	Key     string    `json:"key,omitempty"`     // name of the key
	Percent int       `json:"percent,omitempty"`
	Detail  string    `json:"detail,omitempty"`

	// Subject is what the notice is about; notices of the same kind and subject are not repeated soon.
	Subject string `json:"-"`
	// Complete fills in what takes a database read, before the notice is sent; nil if nothing is missing.
	Complete func(context.Context, *Notice) `json:"-"`

	feedback *Feedback // nil of an event
	more     int64     // notices before it that were dropped
	mailed   []string  // recipients that have it
}

// Settings are what a reload may change.
type Settings struct {
	Webhook   *url.URL // nil: none
	Feedback  *url.URL // a webhook of its own; nil: none
	Mail      bool     // notices are mailed to the recipients
	PublicURL string   // of the gateway, named in notices
}

// Mailer sends mails. Package mail implements it.
type Mailer interface {
	Enabled() bool
	Send(ctx context.Context, to, subject, text string) error
}

// Deps are the parts that a Notifier uses. All are required.
type Deps struct {
	Transport  http.RoundTripper // of the webhook
	Mailer     Mailer
	Recipients func(context.Context) ([]string, error) // addresses of mails
	Registry   prometheus.Registerer
	Log        *zap.Logger
}

// Notifier sends notices. It is safe for concurrent use.
type Notifier struct {
	deps     Deps
	settings atomic.Pointer[Settings]
	client   *http.Client
	count    *prometheus.CounterVec
	channels []*channel // of events
	feedback *channel

	mu      sync.Mutex // guards the fields below
	limiter *rate.Limiter
	sent    map[string]time.Time // when a kind and subject was last sent

	loop wait.Loop
}

// channel is one way to send notices.
type channel struct {
	name    string
	enabled func() bool
	queue   chan Notice
	pause   time.Duration // between two notices
	dropped atomic.Int64  // since a notice last said so
	// send makes one attempt. An error that is permanent is not retried.
	send func(context.Context, *Notice) error
}

// errPermanent wraps the failures that another attempt cannot mend.
var errPermanent = errors.New("refused")

// New returns a Notifier that sends nothing before Start.
func New(s Settings, d Deps) *Notifier {
	n := &Notifier{
		deps: d, limiter: rate.NewLimiter(rate.Every(interval), burst), sent: map[string]time.Time{},
		client: &http.Client{Transport: d.Transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the configured address is the one that gets the notice
		}},
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "basegate_notifications_total",
			Help: "Notifications of operators, by channel (webhook, mail, feedback) and outcome (sent, failed, dropped).",
		}, []string{"channel", "outcome"}),
	}
	n.settings.Store(&s)
	d.Registry.MustRegister(n.count)
	for _, channel := range []string{"webhook", "mail", "feedback"} { // so that the series are there before the first notice
		for _, outcome := range []string{"sent", "failed", "dropped"} {
			n.count.WithLabelValues(channel, outcome)
		}
	}
	n.channels = []*channel{
		{
			name: "webhook", queue: make(chan Notice, queueLength), send: n.callWebhook, pause: webhookPause,
			enabled: func() bool { return n.settings.Load().Webhook != nil },
		},
		{
			name: "mail", queue: make(chan Notice, queueLength), send: n.sendMails,
			enabled: func() bool { return n.settings.Load().Mail && d.Mailer.Enabled() },
		},
	}
	n.feedback = &channel{
		name: "feedback", queue: make(chan Notice, feedbackLength), send: n.sendFeedback, pause: webhookPause,
		enabled: func() bool { return n.settings.Load().Feedback != nil },
	}
	return n
}

// Reload replaces the settings.
func (n *Notifier) Reload(s Settings) { n.settings.Store(&s) }

// Start sends notices until Close.
func (n *Notifier) Start(ctx context.Context) {
	n.loop.Start(ctx, func(ctx context.Context) {
		var workers sync.WaitGroup
		for _, c := range append([]*channel{n.feedback}, n.channels...) {
			workers.Go(func() { n.work(ctx, c) })
		}
		workers.Wait()
	})
}

// Close drops the notices that wait, aborts an attempt in progress and waits for the workers.
func (n *Notifier) Close() { n.loop.Close() }

// Notify queues a notice, unless one about the same was sent lately or too many were.
func (n *Notifier) Notify(notice Notice) {
	if notice.Time.IsZero() {
		notice.Time = time.Now()
	}
	admitted, repeated := n.admit(notice.Kind+"\n"+notice.Subject, notice.Time)
	if repeated {
		return
	}
	for _, c := range n.channels {
		if !c.enabled() {
			continue
		}
		if !admitted {
			n.drop(c)
			continue
		}
		n.enqueue(c, notice)
	}
}

// Feedback queues feedback for its webhook, if there is one.
func (n *Notifier) Feedback(f Feedback) {
	if n.feedback.enabled() {
		n.enqueue(n.feedback, Notice{Kind: "feedback", Text: f.text(), Time: f.Time, feedback: &f})
	}
}

// errNotConfigured is returned by Test for a webhook that there is not.
var errNotConfigured = errors.New("no such webhook is configured")

// Test makes one attempt to send a message of an administrator to the webhook of a channel, webhook or feedback, whatever the limits
// are.
func (n *Notifier) Test(ctx context.Context, name, by string) error {
	const text = "This is a test message"
	now := time.Now()
	for _, c := range append([]*channel{n.feedback}, n.channels...) {
		if c.name == name && c.enabled() {
			return c.attempt(ctx, &Notice{
				Kind: "test", Text: text, Time: now, Account: by, feedback: &Feedback{Time: now, Account: by, Page: "/admin/settings", Message: text},
			})
		}
	}
	return errNotConfigured
}

func (n *Notifier) enqueue(c *channel, notice Notice) {
	select {
	case c.queue <- notice:
	default:
		n.drop(c)
	}
}

func (n *Notifier) drop(c *channel) {
	c.dropped.Add(1)
	n.count.WithLabelValues(c.name, "dropped").Inc()
}

// admit reports whether a notice may be sent, and if not, whether it is a repetition.
func (n *Notifier) admit(subject string, now time.Time) (admitted, repeated bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s, at := range n.sent {
		if now.Sub(at) >= repeatInterval {
			delete(n.sent, s)
		}
	}
	if _, repeated := n.sent[subject]; repeated {
		return false, true
	}
	if !n.limiter.AllowN(now, 1) {
		return false, false
	}
	n.sent[subject] = now
	return true, false
}

// work sends the notices of a channel until ctx ends.
func (n *Notifier) work(ctx context.Context, c *channel) {
	for {
		select {
		case <-ctx.Done():
			return
		case notice := <-c.queue:
			n.deliver(ctx, c, &notice)
			if !wait.For(ctx, c.pause) {
				return
			}
		}
	}
}

// deliver makes the attempts to send a notice.
func (n *Notifier) deliver(ctx context.Context, c *channel, notice *Notice) {
	if notice.Complete != nil {
		notice.Complete(ctx, notice)
	}
	notice.more = c.dropped.Swap(0)
	pause := firstPause
	var err error
	for attempt := range attempts {
		if attempt > 0 && !wait.For(ctx, pause<<(2*(attempt-1))) {
			return
		}
		if err = c.attempt(ctx, notice); err == nil {
			n.count.WithLabelValues(c.name, "sent").Inc()
			return
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errPermanent) {
			break
		}
	}
	n.count.WithLabelValues(c.name, "failed").Inc()
	n.deps.Log.Warn("a notification could not be sent", zap.String("channel", c.name), zap.String("kind", notice.Kind), zap.Error(err))
}

func (c *channel) attempt(ctx context.Context, notice *Notice) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return c.send(ctx, notice)
}
