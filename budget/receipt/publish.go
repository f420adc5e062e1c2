package receipt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/internal/wait"
)

const (
	// publishPace is the least time between two tree heads that are published to a file.
	publishPace = 20 * time.Millisecond
	// webhookInterval is the least time between two tree heads that are sent to a webhook.
	webhookInterval = 10 * time.Second
	// webhookTimeout limits one request to it.
	webhookTimeout = 10 * time.Second
)

// isURL reports whether tree heads are published to a webhook and not to a file.
func isURL(to string) bool {
	return strings.HasPrefix(to, "http://") || strings.HasPrefix(to, "https://")
}

// publishedFile returns the file that tree heads are published to, or "".
func publishedFile(to string) string {
	if isURL(to) {
		return ""
	}
	return to
}

// publish publishes tree heads until ctx ends, and then the last one if they go to a file.
func (l *Log) publish(ctx context.Context) {
	to, last, failing := l.settings.Publish, "", false
	if to == "" {
		return
	}
	for {
		round, checkpoint := *l.round.Load(), l.published.Load().checkpoint
		if checkpoint == last {
			select {
			case <-round:
				continue
			case <-ctx.Done(): // after the last round
				if isURL(to) || l.published.Load().checkpoint == last {
					return
				}
				continue
			}
		}
		pause := publishPace
		if isURL(to) {
			pause = webhookInterval
		}
		err := l.publishHead(ctx, checkpoint)
		if err == nil {
			last = checkpoint
			if failing {
				l.log.Info("tree heads of the receipt log are published again")
			}
		} else {
			l.failures.Add(1)
			pause = max(pause, retryAfter)
			if !failing && ctx.Err() == nil {
				l.log.Error("a tree head of the receipt log could not be published", zap.Error(err))
			}
		}
		failing = err != nil
		if !wait.For(ctx, pause) && (err != nil || isURL(to)) {
			return
		}
	}
}

// publishHead publishes one tree head.
func (l *Log) publishHead(ctx context.Context, checkpoint string) error {
	to := l.settings.Publish
	if !isURL(to) {
		if err := replaceFile(to, []byte(checkpoint)); err != nil {
			return fmt.Errorf("write tree head: %w", err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(checkpoint))
	if err != nil {
		return errWebhook // the URL may hold a secret
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	response, err := l.settings.Transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("send tree head: %w", err)
	}
	defer response.Body.Close()
	io.CopyN(io.Discard, response.Body, maxReceipt) //nolint:errcheck // only the status counts
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("send tree head: %w: %d", errStatus, response.StatusCode)
	}
	return nil
}

var (
	errWebhook = errors.New("the URL of receipts.publish cannot be used")
	errStatus  = errors.New("the webhook answers with status")
)
