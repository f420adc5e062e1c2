package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/receipt"
	apierr "basegate/errors"
	"basegate/gateway/config"
	"basegate/proxy"
)

// ReceiptSettings returns the settings of the receipt log. Its files are beside a SQLite database.
func ReceiptSettings(c *config.Config) receipt.Settings {
	s := receipt.Settings{
		Key:     c.Receipts.Key,
		Origin:  c.Server.PublicURL.Host + receiptsPath,
		Publish: c.Receipts.Publish,
	}
	if c.Database.Postgres() {
		s.Key = cmp.Or(s.Key, clusterKey)
	} else {
		s.Folder = c.Database.Path + ".receipts"
		s.Key = cmp.Or(s.Key, filepath.Join(s.Folder, "key"))
	}
	return s
}

// clusterKey is the file of the signing key with PostgreSQL if receipts.key is empty.
const clusterKey = "basegate.receipts/key"

const receiptsPath = "/receipts"

// openReceipts opens the receipt log if it is enabled.
func (g *Gateway) openReceipts(ctx context.Context, transport http.RoundTripper) (err error) {
	if !g.config.Receipts.Enabled {
		return nil
	}
	settings := ReceiptSettings(g.config)
	settings.Transport = transport
	if g.receipts, err = receipt.Open(ctx, settings, g.db, g.log.Named("receipts")); err != nil {
		return err
	}
	g.registry.MustRegister(receiptMetrics(g.receipts)...)
	return nil
}

func receiptMetrics(l *receipt.Log) []prometheus.Collector {
	return []prometheus.Collector{
		gauge("basegate_receipt_log_entries", "Entries of the receipt log's latest signed tree head.",
			func() float64 { return float64(l.Size()) }),
		counter("basegate_receipt_publish_failures_total", "Failed attempts to publish a tree head of the receipt log.",
			func() float64 { return float64(l.PublishFailures()) }),
	}
}

// mountReceipts registers the routes of the receipt log. Tree heads, hash tiles and proofs are public: they say nothing about
// an entry to a client that does not have it.
func (g *Gateway) mountReceipts(e *echo.Echo) {
	if g.receipts == nil {
		return
	}
	methods := []string{http.MethodGet, http.MethodHead}
	e.Match(methods, receiptsPath+"/checkpoint", func(c echo.Context) error {
		return g.receipts.ServeCheckpoint(c.Response(), c.Request())
	})
	e.Match(methods, receiptsPath+"/tile/*", func(c echo.Context) error {
		return g.receipts.ServeTile(c.Response(), c.Request(), c.Param("*"))
	})
	e.Match(methods, receiptsPath+"/:hash", func(c echo.Context) error {
		key, err := g.keyOf(c.Request())
		if err != nil {
			return err
		}
		return g.receipts.ServeReceipt(c.Response(), c.Request(), c.Param("hash"), key)
	})
}

var errNoBearer = errors.New("the Authorization header is not that of a bearer")

// keyOf returns the id of the key of a request that needs none, or "" without one.
func (g *Gateway) keyOf(r *http.Request) (string, error) {
	secret, found := proxy.Bearer(r.Header)
	switch {
	case len(r.Header.Values("Authorization")) == 0:
		return "", nil
	case !found:
		return "", apierr.BadKey(errNoBearer)
	}
	principal, err := g.keys.Authenticate(r.Context(), secret)
	if err != nil {
		return "", proxy.KeyError(err)
	}
	return principal.KeyID, nil
}
