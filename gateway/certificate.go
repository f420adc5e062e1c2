package gateway

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/gateway/config"
)

// certificatePollInterval is how often the files of the certificate are compared with what is in force. certbot and
// others replace the files without a signal.
const certificatePollInterval = 5 * time.Second

// certificate is the TLS certificate of the public listener. A new one is read from its files when they change and at
// each reload of the configuration; a bad one leaves the old one in force.
type certificate struct {
	log     *zap.Logger
	current atomic.Pointer[tls.Certificate]
	state   reloadState

	mu     sync.Mutex // serializes reloads, and guards the fields below
	files  config.TLS
	digest [sha256.Size]byte // of the files when they were last read, with or without success
	seen   [sha256.Size]byte // of the files at the last poll
}

// openCertificate reads the certificate of the public listener if one is configured.
func (g *Gateway) openCertificate() (err error) {
	files := g.config.Server.TLS
	if files.Cert == "" {
		return nil
	}
	if g.certificate, err = loadCertificate(files, g.log.Named("tls")); err != nil {
		return err
	}
	g.registry.MustRegister(g.certificate.metrics()...)
	return nil
}

// loadCertificate reads a certificate. The error says what is wrong with the files.
func loadCertificate(files config.TLS, log *zap.Logger) (*certificate, error) {
	c := &certificate{log: log, files: files}
	digest, pair, err := files.Load()
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	c.current.Store(pair)
	c.digest, c.seen = digest, digest
	c.state.succeed()
	return c, nil
}

// get returns the certificate in force, for tls.Config.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// poll reads the files if they differ from what was last read. The two files cannot be replaced at once, so a bad pair
// counts only if the next poll finds it too.
func (c *certificate) poll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	digest, pair, err := c.files.Load()
	if digest == c.digest {
		return
	}
	unchanged := digest == c.seen
	c.seen = digest
	if err == nil || unchanged {
		c.apply(digest, pair, err)
	}
}

// reload reads the files at once, from other paths if the configuration names them.
func (c *certificate) reload(files config.TLS) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files = files
	c.apply(files.Load())
}

// apply puts a certificate in force unless it is bad. c.mu is held.
func (c *certificate) apply(digest [sha256.Size]byte, pair *tls.Certificate, err error) {
	changed := digest != c.digest
	c.digest, c.seen = digest, digest
	if err == nil && time.Now().After(pair.Leaf.NotAfter) && pair.Leaf.NotAfter.Before(c.current.Load().Leaf.NotAfter) {
		err = fmt.Errorf("%w at %s", errCertificateExpired, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err != nil {
		c.state.fail(err)
		c.log.Error("certificate refused, the old one stays", zap.Error(err))
		return
	}
	c.current.Store(pair)
	c.state.succeed()
	if changed {
		c.log.Info("certificate replaced", zap.Time("not_after", pair.Leaf.NotAfter))
	}
}

var errCertificateExpired = errors.New("the certificate has expired")

func (c *certificate) metrics() []prometheus.Collector {
	return []prometheus.Collector{
		gauge("basegate_tls_certificate_expiry_timestamp_seconds", "When the TLS certificate that is in force expires.",
			func() float64 { return float64(c.current.Load().Leaf.NotAfter.Unix()) }),
		gauge("basegate_tls_certificate_last_reload_successful",
			"1 if the last new TLS certificate was accepted, 0 if it was refused and an older one is in force.", c.state.successful),
	}
}
