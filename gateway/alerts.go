package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/dustin/go-humanize"

	"basegate/batch"
	"basegate/budget"
	"basegate/budget/quota"
	"basegate/console/history"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/gateway/notify"
	"basegate/identity"
)

func notifySettings(c *config.Config) notify.Settings {
	return notify.Settings{Webhook: c.Notifications.Webhook, Feedback: c.Console.FeedbackWebhook, Mail: c.Mail.Alerts, PublicURL: c.Server.PublicURL.String()}
}

// newNotifier creates the notifier, whose mails go to the administrators.
func (g *Gateway) newNotifier(webhooks http.RoundTripper, accounts *identity.Accounts) *notify.Notifier {
	return notify.New(notifySettings(g.config), notify.Deps{
		Transport: webhooks, Mailer: g.mailer, Registry: g.registry, Log: g.log.Named("notify"),
		Recipients: func(ctx context.Context) ([]string, error) { return administrators(ctx, accounts) },
	})
}

// administrators returns the addresses of the active administrators.
func administrators(ctx context.Context, accounts *identity.Accounts) ([]string, error) {
	all, err := accounts.List(ctx)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, a := range all {
		if a.Admin && a.State == identity.AccountActive {
			addresses = append(addresses, a.Email)
		}
	}
	return addresses, nil
}

// fleetNotices are the texts of the events of backends that operators are notified of.
var fleetNotices = map[fleet.EventKind]string{
	fleet.BreakerOpened: "the breaker of %s is open: it gets no requests",
	fleet.BootFailed:    "the boot of %s has failed",
}

// onFleetEvent adds an event of a backend to the timeline, and notifies operators if they have to act.
func (g *Gateway) onFleetEvent(e fleet.Event) {
	g.history.Add(context.Background(), history.Event{Kind: history.EventKind(e.Kind), Model: e.Model, Backend: e.Backend, Detail: e.Reason})
	if text, ok := fleetNotices[e.Kind]; ok {
		backend := e.Model + "/" + e.Backend
		g.notifier.Notify(notify.Notice{
			Kind: string(e.Kind), Text: fmt.Sprintf(text, backend), Model: e.Model, Backend: e.Backend, Detail: e.Reason, Subject: backend,
		})
	}
}

// onBudgetAlarm adds the alarm of a cap to the timeline, and notifies operators.
func (g *Gateway) onBudgetAlarm(a budget.Alarm) {
	e := history.Event{Kind: history.BudgetNear, AccountID: a.Account, Detail: describeAlarm(a)}
	text := fmt.Sprintf("%d %% of a budget are used", budget.NearlyUsed)
	if a.Percent == budget.UsedUp {
		e.Kind, text = history.BudgetUsed, "a budget is used up"
	}
	if a.Cap.Scope != budget.ScopeAccount {
		e.KeyID = a.Key
	}
	g.history.Add(context.Background(), e)
	g.notifier.Notify(notify.Notice{
		Kind: string(e.Kind), Text: text, Percent: a.Percent, Detail: e.Detail,
		Subject:  fmt.Sprintf("%s %s %s %s", e.AccountID, e.KeyID, a.Cap.Window, a.Cap.Meter),
		Complete: func(_ context.Context, n *notify.Notice) { g.nameOwner(n, e) },
	})
}

// onBatchEnd notifies operators of the end of a batch.
func (g *Gateway) onBatchEnd(b batch.Batch) {
	g.notifier.Notify(notify.Notice{
		Kind: "batch_ended", Text: fmt.Sprintf("the batch %s is %s", b.ID, b.Status), Subject: b.ID,
		Detail: fmt.Sprintf("%d of %d lines completed, %d failed", b.Completed, b.Total, b.Failed),
		Complete: func(_ context.Context, n *notify.Notice) {
			g.nameOwner(n, history.Event{AccountID: b.Account, KeyID: b.Key})
		},
	})
}

// nameOwner fills in the address of the account and the name of the key. Their ids stand for what cannot be read.
func (g *Gateway) nameOwner(n *notify.Notice, e history.Event) {
	key, _ := g.keys.Lookup(e.KeyID)
	n.Account, n.Key = cmp.Or(g.keys.Email(e.AccountID), e.AccountID), cmp.Or(key.KeyName, e.KeyID)
}

// meterNames are what a meter counts, in words.
var meterNames = map[quota.Meter]string{
	quota.Total: "tokens", quota.Input: "prompt tokens", quota.Output: "completion tokens",
}

// describeAlarm says what is used of which cap.
func describeAlarm(a budget.Alarm) string {
	resets := "does not reset"
	if !a.Cap.ResetsAt.IsZero() {
		resets = "resets at " + a.Cap.ResetsAt.UTC().Format("2006-01-02 15:04") + " UTC"
	}
	return fmt.Sprintf("%s of %s %s of the %s are used; it %s",
		humanize.Comma(a.Cap.Used), humanize.Comma(a.Cap.Limit), meterNames[a.Cap.Meter], a.Cap.Window, resets)
}
