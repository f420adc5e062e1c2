package fleet

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"sync"

	"basegate/database"
	"basegate/gateway/config"
	"basegate/validate"
)

// serverInfo is what the backend has reported about itself. It is replaced as a whole.
type serverInfo struct {
	maxModelLen   int64           // tokens; 0 if vLLM did not report it
	version       string          // of vLLM; empty if it did not report it
	versionKnown  bool            // version and server.Rust are those of this start of the server
	server        validate.Server // what can be served; only the version is kept across restarts of the gateway
	describeTries int             // how often the server has been asked for its OpenAPI document since its start
	specialTokens int64           // tokens that the tokenizer adds to a prompt
	specialKnown  bool            // specialTokens has been measured
	template      template        // of a model that chats; it is measured again after a restart of the gateway
	source        source          // of the server that has reported it
	launched      string          // its address, if launch.start has printed one
}

// source is a hash of the configuration that determines which server answers: its address, its checkpoint and the
// command that starts it. After another one has been configured, what the server has reported is outdated.
type source [sha256.Size]byte

func sourceOf(checkpoint string, c *config.Backend) source {
	parts := []string{c.URL.String(), checkpoint}
	if c.Launch != nil {
		parts = append(parts, c.Launch.Start...)
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q", parts))
}

// reports holds the last serverInfo of every backend, across reloads and, in the database, across restarts.
type reports struct {
	mu     sync.Mutex
	latest map[backendID]serverInfo
}

// loadReports reads the reports of earlier runs for the backends that have not been probed yet. f.mu is held.
func (f *Fleet) loadReports(ctx context.Context) error {
	const text = `SELECT model, backend, source, max_model_len, version, special_tokens, launched FROM backend_reports`
	f.reports.mu.Lock()
	_, err := database.List(ctx, f.db.Read(), func(row database.Scanner) (id backendID, err error) {
		var (
			info    serverInfo
			origin  []byte
			special sql.NullInt64
		)
		err = row.Scan(&id.model, &id.backend, &origin, &info.maxModelLen, &info.version, &special, &info.launched)
		copy(info.source[:], origin)
		info.server.Version = validate.ParseVersion(info.version)
		info.specialTokens, info.specialKnown = special.Int64, special.Valid
		f.reports.latest[id] = info
		return id, err
	}, text)
	f.reports.mu.Unlock()
	for _, b := range f.catalogue.Load().backends() {
		b.recallReport()
	}
	return err
}

// recallReport restores the last report of the backend, or forgets it if it came from another source.
func (b *Backend) recallReport() {
	r := &b.fleet.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	info := r.latest[b.id()]
	if own := sourceOf(b.checkpoint, b.cfg()); info.source != own {
		info = r.latest[backendID{b.modelID, b.cfg().First}] // the same program has started it
		if info.launched = ""; info.source != own {
			info = serverInfo{}
		}
	}
	b.info.Store(&info)
	b.moveTo(info.launched)
}

// reconfigure replaces the launch and sleep settings. If the next boot runs another command, what the last one reported is
// outdated; a server that is ready goes on as it is until it stops.
func (b *Backend) reconfigure(c *config.Backend) {
	before := sourceOf(b.checkpoint, b.cfg())
	b.config.Store(c)
	b.mu.Lock()
	b.life.role = roleUsed // it may be no replica any more
	b.mu.Unlock()
	if !b.is(Ready) && sourceOf(b.checkpoint, c) != before {
		b.recallReport()
	}
}

// recordReport stores what the backend has reported. Without the row, it counts as unknown after a restart.
func (b *Backend) recordReport(info *serverInfo) {
	info.launched = b.address.Load().launched
	b.info.Store(info)
	r := &b.fleet.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.latest[b.id()] == *info {
		return
	}
	r.latest[b.id()] = *info
	const text = `INSERT INTO backend_reports (model, backend, source, max_model_len, version, special_tokens, launched)
		VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (model, backend) DO UPDATE SET source = excluded.source, max_model_len = excluded.max_model_len,
		version = excluded.version, special_tokens = excluded.special_tokens, launched = excluded.launched`
	special := sql.NullInt64{Int64: info.specialTokens, Valid: info.specialKnown}
	b.fleet.submit(text, b.modelID, b.Name, info.source[:], info.maxModelLen, info.version, special, info.launched)
}
