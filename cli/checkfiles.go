package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"basegate/gateway"
	"basegate/gateway/config"
)

// certificateWarning is how long before the end of a certificate check warns of it. Certificates that are renewed by
// themselves are renewed about a month before.
const certificateWarning = 30 * 24 * time.Hour

// checkTLS checks the certificate and its key.
func checkTLS(tls config.TLS, now time.Time) []finding {
	if tls.Cert == "" {
		return nil
	}
	const part = "certificate"
	_, pair, err := tls.Load()
	if err != nil {
		return []finding{{part, checkFailed, err.Error()}}
	}
	leaf := pair.Leaf
	end := leaf.NotAfter.UTC().Format("2006-01-02 15:04 MST")
	switch left := leaf.NotAfter.Sub(now); {
	case now.Before(leaf.NotBefore):
		begin := leaf.NotBefore.UTC().Format("2006-01-02 15:04 MST")
		return []finding{{part, checkFailed, fmt.Sprintf("%s is valid only from %s on", tls.Cert, begin)}}
	case left <= 0:
		return []finding{{part, checkFailed, fmt.Sprintf("%s has expired at %s", tls.Cert, end)}}
	case left < certificateWarning:
		days := int(left / (24 * time.Hour))
		return []finding{{part, checkWarning, fmt.Sprintf("%s expires in %d days, at %s; the gateway reads a renewed one by itself", tls.Cert, days, end)}}
	}
	return []finding{{part, checkOK, fmt.Sprintf("%s, valid until %s", tls.Cert, end)}}
}

// permission is what no other user of the machine may do with a file or folder.
type permission struct {
	path   string
	what   string      // the file holds, or is
	denied fs.FileMode // of these bits, others may have none
}

// othersRead and othersWrite are the bits of a file's mode for users that are neither its owner nor of its group.
const (
	othersRead  fs.FileMode = 0o004
	othersWrite fs.FileMode = 0o002
)

// checkPermissions warns of files with secrets that every user of the machine can read, and of files and folders that
// every user can replace.
func checkPermissions(configPath string, cfg *config.Config) []finding {
	folder := filepath.Dir(configPath)
	configDenied := othersWrite
	if cfg.HoldsSecrets {
		configDenied |= othersRead
	}
	permissions := []permission{
		{configPath, "the configuration", configDenied},
		{folder, "the folder of the configuration", othersWrite},
		{filepath.Join(folder, ".env"), "secrets", othersRead | othersWrite},
		{filepath.Join(folder, "environment"), "secrets", othersRead | othersWrite},
	}
	if !cfg.Database.Postgres() {
		permissions = append(permissions, permission{cfg.Database.Path, "accounts and usage", othersRead | othersWrite},
			permission{filepath.Dir(cfg.Database.Path), "the folder of the database", othersWrite})
	}
	if cfg.Receipts.Enabled {
		key := gateway.ReceiptSettings(cfg).Key
		permissions = append(permissions, permission{key, "the signing key of receipts", othersRead | othersWrite},
			permission{filepath.Dir(key), "the folder of the signing key of receipts", othersWrite})
	}
	if cfg.Server.TLS.Key != "" {
		permissions = append(permissions, permission{cfg.Server.TLS.Key, "the key of the certificate", othersRead | othersWrite})
	}
	var findings []finding
	seen := map[string]bool{}
	for _, p := range permissions {
		if !seen[p.path] {
			findings = append(findings, p.check()...)
		}
		seen[p.path] = true
	}
	return findings
}

// check returns a warning with the command that mends the mode. A file that does not exist has no mode.
func (p permission) check() []finding {
	info, err := os.Stat(p.path)
	if err != nil || info.IsDir() && p.denied&othersRead != 0 { // a folder that only has the name of such a file
		return nil
	}
	bad := info.Mode().Perm() & p.denied
	if info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		bad = 0 // others cannot replace what is not theirs, as in /tmp
	}
	if bad == 0 {
		return nil
	}
	verbs, mode := []string{}, "o-"
	if bad&othersRead != 0 {
		verbs, mode = append(verbs, "read"), mode+"r"
	}
	if bad&othersWrite != 0 {
		verbs, mode = append(verbs, "change"), mode+"w"
	}
	verb := strings.Join(verbs, " and ")
	detail := fmt.Sprintf("every user of this machine can %s %s (%s); run: chmod %s %s", verb, p.path, p.what, mode, p.path)
	return []finding{{"permissions", checkWarning, detail}}
}
