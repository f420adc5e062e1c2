package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/database/postgres"
	"basegate/fleet"
	"basegate/gateway"
	"basegate/gateway/config"
)

// finding is one row of the table that check prints.
type finding struct {
	Part    string `json:"part"`
	Verdict string `json:"verdict"` // checkOK, checkWarning or checkFailed
	Detail  string `json:"detail"`
}

// Verdicts of a finding.
const (
	checkOK      = "ok"
	checkWarning = "warning"
	checkFailed  = "failed"
)

// checkTimeout limits each request to a backend.
const checkTimeout = 10 * time.Second

var errCheck = errors.New("something failed, see the table")

func newCheck() *cobra.Command {
	var live, probe, asJSON bool
	var only []string
	cmd := newCommand("check", "Check the configuration, the database, the storage of files and every backend", "",
		func(cmd *cobra.Command, _ []string) error {
			if live {
				return checkHealth(cmd)
			}
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := knownModels(cfg, only); err != nil {
				return err
			}
			findings := checkConfig(cfg)
			if socket := unneededDockerSocket(cmd.Context(), cfg); socket != "" {
				findings = append(findings, finding{"docker", checkWarning, socket + ": " + dockerSocketWarning})
			}
			ofDatabase, adapters := checkDatabase(cmd.Context(), cfg)
			findings = slices.Concat(findings, checkTLS(cfg.Server.TLS, time.Now()), checkPermissions(configPath(cmd), cfg),
				ofDatabase, checkBucket(cmd.Context(), cfg))
			err = withProbedFleet(cmd.Context(), cfg, func(f *fleet.Fleet) {
				for _, m := range f.BaseModels() {
					if len(only) > 0 && !slices.Contains(only, m.ID()) {
						continue
					}
					for _, b := range m.Backends() {
						if b.Replica() > 1 { // the same programs as of the first; where it is only the gateway knows
							continue
						}
						findings = append(findings, checkBackend(cmd.Context(), m, b, adapters, probe)...)
					}
				}
			})
			if err != nil {
				return err
			}
			return printFindings(cmd, findings, asJSON)
		})
	cmd.Flags().BoolVar(&live, "live", false,
		"only request /healthz from the running gateway, as a container's health check does")
	cmd.Flags().BoolVar(&probe, "probe", false,
		"also try with a few tokens what each backend lacks of vLLM's completions")
	cmd.Flags().StringArrayVar(&only, "model", nil, "check the backends of the model `ID` only; may be repeated")
	addJSONFlag(cmd, &asJSON)
	excludeFlags(cmd, "live", "probe", "json", "model")
	return cmd
}

// knownModels returns an error if an id is not one of a configured model.
func knownModels(cfg *config.Config, ids []string) error {
	known := cfg.ModelIDs()
	for _, id := range ids {
		if !slices.Contains(known, id) {
			return fmt.Errorf("--model: no model %q is configured; there are %s", id, strings.Join(known, ", "))
		}
	}
	return nil
}

func printFindings(cmd *cobra.Command, findings []finding, asJSON bool) error {
	l := list{headings: []string{"PART", "VERDICT", "DETAIL"}}
	for _, f := range findings {
		f.Detail = strings.ReplaceAll(f.Detail, "\n\t", " ") // the driver lists the hosts of a database in lines of their own
		l.add(f, f.Part, f.Verdict, f.Detail)
	}
	if err := l.print(cmd, asJSON); err != nil {
		return err
	}
	if anyFailed(findings) {
		return errCheck
	}
	return nil
}

func checkConfig(cfg *config.Config) []finding {
	findings := []finding{{"configuration", checkOK, "models: " + strings.Join(cfg.ModelIDs(), ", ")}}
	for _, w := range cfg.Warnings {
		findings = append(findings, finding{"configuration", checkWarning, w.Error()})
	}
	return findings
}

// checkDatabase checks the database and, if they are enabled, the receipts in it. It opens the database as a gateway does,
// but changes nothing in it: a gateway of an earlier version may serve from it.
func checkDatabase(ctx context.Context, cfg *config.Config) (findings []finding, adapters []fleet.Adapter) {
	const part = "database"
	settings := gateway.DatabaseSettings(&cfg.Database)
	settings.ReadOnly, settings.LockWait = true, commandLockWait
	opening, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	db, err := database.Open(opening, settings, zap.NewNop())
	if errors.Is(err, fs.ErrNotExist) && !cfg.Database.Postgres() {
		if err = database.CheckAccess(cfg.Database.Path); err == nil {
			return []finding{{part, checkOK, databaseText(&cfg.Database)}, {part, checkOK, "the file does not exist: the first start makes it"}}, nil
		}
	}
	if err != nil {
		where := ""
		if cfg.Database.Postgres() { // an error of SQLite names the file
			where = databaseText(&cfg.Database) + ": "
		}
		return []finding{{part, checkFailed, where + err.Error()}}, nil
	}
	check := checkFile
	if cfg.Database.Postgres() {
		check = checkPostgres
	}
	findings, current := check(ctx, &cfg.Database, db)
	if current {
		findings = append(findings, checkReports(ctx, cfg, db)...)
		if adapters, err = fleet.Adapters(ctx, db, cfg.Models); err != nil {
			findings = append(findings, finding{part, checkFailed, err.Error()})
		}
		for i := range adapters {
			if a := &adapters[i]; a.Changed() {
				findings = append(findings, finding{"adapter " + a.ID, checkWarning, "its files have changed since it was added: add it again"})
			}
		}
	}
	switch {
	case !cfg.Receipts.Enabled:
	case current:
		findings = append(findings, checkReceipts(ctx, cfg, db)...)
	default:
		findings = append(findings, finding{"receipts", checkOK, "the log can be checked when the schema is migrated"})
	}
	if err := db.Close(); err != nil {
		findings = append(findings, finding{part, checkFailed, err.Error()})
	}
	return findings, adapters
}

// databaseText describes where the database is.
func databaseText(c *config.Database) string {
	text := c.Location()
	if c.Flush > 0 {
		text += fmt.Sprintf(", flushed every %v: a power failure may lose the charges of as long", c.Flush)
	}
	return text
}

// checkFile checks a SQLite database, and reports whether its schema is current.
func checkFile(ctx context.Context, c *config.Database, db *database.DB) (findings []finding, current bool) {
	const part = "database"
	schema, err := db.Schema(ctx)
	if err == nil {
		err = database.CheckAccess(c.Path)
	}
	if err != nil {
		return []finding{{part, checkFailed, databaseText(c) + ": " + err.Error()}}, false
	}
	findings = []finding{{part, checkOK, databaseText(c)}}
	switch {
	case schema.Version == 0:
		findings = append(findings, finding{part, checkWarning, "the database is empty: the first start makes the schema, with " + count(schema.Pending(), "migration")})
	case schema.Pending() > 0:
		findings = append(findings, finding{part, checkWarning, fmt.Sprintf("the schema has version %d: the next start migrates it to %d, with %s",
			schema.Version, schema.Known, count(schema.Pending(), "migration"))})
	}
	return findings, schema.Pending() == 0
}

// serverTimeout limits the check of a PostgreSQL server, of which a single query may take statement_timeout.
const serverTimeout = 30 * time.Second

// checkPostgres checks the server of database.url, and reports whether the schema in it is current.
func checkPostgres(ctx context.Context, c *config.Database, db *database.DB) (findings []finding, current bool) {
	const part = "database"
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	checked, err := db.Postgres().Check(ctx, gateway.DatabaseConnections(), c.Migrate)
	if err != nil {
		return []finding{{part, checkFailed, c.Location() + ": " + err.Error()}}, false
	}
	findings = toFindings(part, checked.Findings)
	if !anyFailed(findings) {
		findings = append([]finding{{part, checkOK, checked.Server}}, findings...)
	}
	return findings, checked.Current
}

// bucketTimeout limits the check of the bucket, which retries what may pass.
const bucketTimeout = 30 * time.Second

// checkBucket checks the bucket of the files; none if they are in a folder.
func checkBucket(ctx context.Context, cfg *config.Config) []finding {
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	location, warnings, err := gateway.CheckFiles(ctx, cfg)
	if location == "" {
		return nil
	}
	var findings []finding
	for _, w := range warnings {
		findings = append(findings, finding{"files", checkWarning, w})
	}
	if err != nil {
		return append(findings, finding{"files", checkFailed, location + ": " + err.Error()})
	}
	return append(findings, finding{"files", checkOK, location})
}

// checkBackend checks a backend of a model. With probe it sends completions, which cost tokens.
func checkBackend(ctx context.Context, m *fleet.Model, b *fleet.Backend, adapters []fleet.Adapter, probe bool) []finding {
	part := m.ID() + "/" + b.Name
	findings := toFindings(part, b.LaunchFindings())
	switch state, reason := b.State(); state {
	case fleet.Ready:
	case fleet.Stopped, fleet.Asleep:
		if wrong := b.WrongServer(ctx); wrong != "" {
			detail := fmt.Sprintf("another server listens at %s: %s; correct the url, or run there vLLM with --served-model-name %s",
				b.URL(""), wrong, m.Checkpoint())
			return append(findings, finding{part, checkFailed, detail})
		}
		detail := fmt.Sprintf("%s: a request starts it, and its models can be checked only then (%s)", state, b.URL(""))
		return append(findings, finding{part, checkWarning, detail})
	case fleet.Starting, fleet.Draining, fleet.Unreachable, fleet.Failed:
		detail := fmt.Sprintf("%s: %s (%s); ", state, reason, b.URL(""))
		switch {
		case b.Mismatch() != "":
			detail += "start it with the configured model, and with --served-model-name " + m.Checkpoint() + ", or correct checkpoint to what it serves"
		case strings.HasPrefix(reason, "/"): // something answered, but not as vLLM does
			detail += "correct the url if another server listens there, or the api_key if vLLM refuses it"
		default:
			detail += "start vLLM there, or correct the url"
		}
		return append(findings, finding{part, checkFailed, detail})
	}
	findings = slices.Concat(findings, checkServed(part, m, b), toFindings(part, m.VersionFindings(b)),
		toFindings(part, b.ChatFindings()), checkTokenize(ctx, part, b), checkAdapters(ctx, part, m, b, adapters))
	if m.Completions() {
		findings = append(findings, checkScoring(ctx, part, b)...)
	}
	if probe {
		findings = slices.Concat(findings, probeCapabilities(ctx, part, m.Checkpoint(), b), probeNames(ctx, part, b))
	}
	return findings
}

// toFindings converts what the fleet or the database has found.
func toFindings[F fleet.Finding | postgres.Finding](part string, found []F) []finding {
	var findings []finding
	for _, f := range found {
		result := checkWarning
		if f := fleet.Finding(f); f.Failure {
			result = checkFailed
		}
		findings = append(findings, finding{part, result, fleet.Finding(f).Text})
	}
	return findings
}

func anyFailed(findings []finding) bool {
	return slices.ContainsFunc(findings, func(f finding) bool { return f.Verdict == checkFailed })
}

// checkServed checks that the backend, which the last probe found ready, serves the checkpoint with the configured context.
func checkServed(part string, m *fleet.Model, b *fleet.Backend) []finding {
	findings := toFindings(part, m.ServedFindings(b))
	if anyFailed(findings) {
		return findings
	}
	text := "context not reported"
	if length := b.MaxModelLen(); length > 0 {
		text = fmt.Sprintf("context %d tokens", length)
	}
	served := finding{part, checkOK, fmt.Sprintf("serves %s, %s, vLLM %s", m.Checkpoint(), text, dash(b.Version()))}
	return append([]finding{served}, findings...)
}

// checkAdapters checks that a backend of a model that takes adapters can load them, those of all models.
func checkAdapters(ctx context.Context, part string, m *fleet.Model, b *fleet.Backend, all []fleet.Adapter) []finding {
	own := slices.DeleteFunc(slices.Clone(all), func(a fleet.Adapter) bool { return a.Model != m.ID() })
	if !m.TakesAdapters() && len(own) == 0 {
		return nil
	}
	if len(own) == 0 { // as if nothing is recorded yet
		for _, a := range m.Adapters() {
			own = append(own, *a.Adapter())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout*time.Duration(1+len(own)))
	defer cancel()
	return toFindings(part, b.AdapterFindings(ctx, own))
}

// checkTokenize checks the endpoint that the gateway takes exact token counts from.
func checkTokenize(ctx context.Context, part string, b *fleet.Backend) []finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch _, err := b.CountTokens(ctx, "a", true); {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrNoTokenizer):
		return []finding{{part, checkFailed, err.Error() +
			"; so the bytes of a prompt decide whether it fits, and prompts are refused that would fit"}}
	default:
		return []finding{{part, checkFailed, "/tokenize does not answer, so prompts cannot be counted: " + err.Error()}}
	}
}
