//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// maxLog is the size that the write-ahead log stays below, in bytes.
const maxLog = 64 << 20

// openDownload requests a page on a connection of its own, reads the beginning of the response, and reads no further. It returns
// the status.
func (g *gateway) openDownload(browser *http.Client, path string) (status string) {
	g.t.Helper()
	req, err := pageRequest(g.url+path, browser.Jar)
	must(g.t, err)
	conn, err := net.Dial("tcp", req.Host)
	must(g.t, err)
	g.t.Cleanup(func() { conn.Close() })
	must(g.t, conn.(*net.TCPConn).SetReadBuffer(4096))
	must(g.t, req.Write(conn))
	start := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(conn, start)
	must(g.t, err)
	return strings.TrimPrefix(string(start), "HTTP/1.1 ")
}

// pageRequest returns the request for a page, with the cookies of a browser.
func pageRequest(address string, jar http.CookieJar) (*http.Request, error) {
	req, err := http.NewRequest(http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, c := range jar.Cookies(req.URL) {
		req.AddCookie(c)
	}
	return req, nil
}

// Four downloads that are not read, and sixty clients that load a page of usage again and again, delay neither requests
// nor the revocation of keys nor readiness.
func TestReadersCannotStarveTheService(t *testing.T) {
	useBinaryWithoutRaceDetector(t)
	env := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL())
	env.run("account", "set", env.email, "--admin")
	env.fillLedger(300_000)
	g := env.serve()
	browser := g.signIn()
	month := pastMonth()
	download := "/usage/export?what=requests&account=all&" + month
	for range 4 {
		if status := g.openDownload(browser, download); status != "200" {
			t.Fatalf("a download gets status %s, want 200", status)
		}
	}
	poll.Until(t, "a fifth download of the account gets status 503", func() bool {
		status, _, err := fetch(t.Context(), browser, g.url+download)
		if err != nil || status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Fatalf("a fifth download of the account gets status %d, error %v, want 503", status, err)
		}
		if status == http.StatusOK { // one that is not read ends after half a minute
			g.openDownload(browser, download)
		}
		return status == http.StatusServiceUnavailable
	})

	ctx, cancel := context.WithCancel(t.Context())
	var (
		readers       sync.WaitGroup
		shown, busy   atomic.Int64
		logSize       atomic.Int64
		watchInterval = 20 * time.Millisecond
	)
	defer readers.Wait()
	defer cancel()
	for range 60 {
		readers.Go(func() {
			for ctx.Err() == nil {
				switch status, _, err := fetch(ctx, browser, g.url+"/usage?account=all&"+month); {
				case ctx.Err() != nil:
				case err != nil:
					t.Error(err)
				case status == http.StatusOK:
					shown.Add(1)
				case status == http.StatusServiceUnavailable:
					busy.Add(1)
				default:
					t.Errorf("a page of usage has status %d", status)
				}
			}
		})
	}
	readers.Go(func() {
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if info, err := os.Stat(g.database + "-wal"); err == nil {
				logSize.Store(max(logSize.Load(), info.Size()))
			}
			<-tick.C
		}
	})
	poll.Until(t, "a page of usage is shown", func() bool { return shown.Load() > 0 })

	const limit = waitTimeout // an unread download held a connection for ever
	for i := range 5 {
		if got := g.get(g.admin, "/readyz"); got.status != http.StatusOK {
			t.Errorf("/readyz returns %d %s", got.status, got.body)
		}
		if got := g.complete(smallRequest); got.status != http.StatusOK {
			t.Errorf("a completion returns %d %s", got.status, got.body)
		}
		secret := g.createKey(fmt.Sprint("paused ", i))
		g.waitForKey(secret)
		g.run("key", "pause", secret[:13])
		poll.Within(t, limit, "the paused key is refused", func() bool {
			got, err := post(g.url, secret, smallRequest)
			return err == nil && got.status == http.StatusUnauthorized
		})
	}
	cancel()
	readers.Wait()
	if size := logSize.Load(); size > maxLog {
		t.Errorf("the write-ahead log has grown to %d bytes, want at most %d", size, maxLog)
	}
	t.Logf("%d pages were shown, %d were refused; the log had at most %d bytes", shown.Load(), busy.Load(), logSize.Load())
}

// A second gateway on the same database names the first one and changes nothing. Commands work beside the first.
func TestSecondGatewayOnADatabaseChangesNothing(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	stream := g.heldStream(mock)
	rows := func() []ledgerRow {
		all, err := g.ledgerRows(t.Context())
		must(t, err)
		return all
	}
	poll.Until(t, "the stream has a row", func() bool { return len(rows()) == 1 })
	_, stderr, code := runCommand(t, "serve", "--config", g.config)
	first := fmt.Sprintf("process %d on ", g.cmd.Process.Pid)
	if code != 1 || !strings.Contains(stderr, first) || !strings.Contains(stderr, "listening on "+strings.TrimPrefix(g.url, "http://")) {
		t.Errorf("a second gateway exits with %d, want 1 and an error that names %q: %s", code, first, stderr)
	}
	if _, stderr, code := runCommand(t, "database", "check", "--repair", "--config", g.config); code != 1 || !strings.Contains(stderr, first) {
		t.Errorf("a repair beside a gateway exits with %d, want 1 and an error that names %q: %s", code, first, stderr)
	}
	if all := rows(); len(all) != 1 || all[0].State != "in_flight" {
		t.Errorf("the ledger has %+v, want the stream in flight", all)
	}
	g.run("usage")
	g.run("key", "list")
	g.run("database", "check")
	mock.ClearFaults()
	stream.readAll()
	poll.Until(t, "the stream is settled", func() bool { all := rows(); return len(all) == 1 && all[0].State == "settled" })
}
