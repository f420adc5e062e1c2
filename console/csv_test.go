package console_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"basegate/console"
	"basegate/database"
	"basegate/internal/poll"
)

// addManyRequests adds requests of an account to the ledger, more than the buffers of a connection hold as CSV.
func (s *site) addManyRequests(account string) {
	s.t.Helper()
	const rows, atOnce = 40_000, 2_000 // a statement of them all may take longer than a statement may
	const text = `
		WITH RECURSIVE n (i) AS (SELECT $1 UNION ALL SELECT i + 1 FROM n WHERE i < $2)
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		SELECT printf('req_%026d', i), $3, 'key_of_a_long_name', $4, 'llama-8b', 'gpu1', '/v1/completions', 'batch', 'user', 0,
			200, '', 'settled', 100, 10, 1, 1, 1 FROM n`
	insert := text
	if s.db.Postgres() != nil {
		insert = strings.NewReplacer("$1", "$1::bigint", "$2", "$2::bigint", "$3", "$3::bigint", "printf('req_%026d', i)", "'req_' || lpad(i::text, 26, '0')",
			"'user', 0", "'user', false").Replace(text)
	}
	insert = strings.Replace(insert, "'user'", "'"+strings.Repeat("user", 60)+"'", 1) // more than the buffers of sockets take
	must(s.t, s.db.WriteExclusive(s.t.Context(), func(tx database.Tx) error {
		for first := 1; first <= rows; first += atOnce {
			_, err := tx.ExecContext(s.t.Context(), insert, first, first+atOnce-1, time.Now().UnixMicro(), account)
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// startDownload requests the CSV file of all requests of the last days, and reads the first line of the response only.
func (b *browser) startDownload() (status int, conn net.Conn, rest *bufio.Reader) {
	b.t.Helper()
	address, err := url.Parse(b.url)
	must(b.t, err)
	conn, err = net.Dial("tcp", address.Host)
	must(b.t, err)
	b.t.Cleanup(func() { conn.Close() })
	must(b.t, conn.(*net.TCPConn).SetReadBuffer(4096))
	var cookies []string
	for _, c := range b.client.Jar.Cookies(address) {
		cookies = append(cookies, c.Name+"="+c.Value)
	}
	_, err = fmt.Fprintf(conn, "GET /usage/export?what=requests HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", address.Host, strings.Join(cookies, "; "))
	must(b.t, err)
	rest = bufio.NewReader(conn)
	line, err := rest.ReadString('\n')
	must(b.t, err)
	_, err = fmt.Sscanf(line, "HTTP/1.1 %d", &status)
	must(b.t, err)
	return status, conn, rest
}

func TestDownloadsOfAnAccountAreLimitedAndEndIfNotRead(t *testing.T) {
	s := newSite(t)
	s.addManyRequests(s.account("ada@example.org", false).ID)
	s.account("bob@example.org", false)
	ada, bob := s.signIn("ada@example.org"), s.signIn("bob@example.org")
	s.SetPatience(time.Minute)
	for range console.MaxDownloads {
		if status, _, _ := ada.startDownload(); status != http.StatusOK {
			t.Fatalf("a download has status %d, want 200", status)
		}
	}
	refused := ada.get("/usage/export?by=model")
	if refused.status != http.StatusServiceUnavailable || refused.header.Get("Retry-After") == "" ||
		refused.header.Get("Content-Disposition") != "" {
		t.Errorf("one more download has status %d and header %v, want 503 with Retry-After", refused.status, refused.header)
	}
	if got := bob.get("/usage/export?by=model"); got.status != http.StatusOK {
		t.Errorf("a download of another account has status %d, want 200", got.status)
	}
	for _, path := range []string{"/usage", "/usage/requests", "/dashboard"} {
		poll.Until(t, path+" is served", func() bool { return ada.get(path).status == http.StatusOK }) // the downloads read in turns
	}
}

func TestDownloadThatIsNotReadEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	s := newSite(t)
	s.SetPatience(time.Second)
	account := s.account("ada@example.org", false).ID
	s.addManyRequests(account)
	ada := s.signIn("ada@example.org")
	_, conn, rest := ada.startDownload()
	for range console.MaxDownloads - 1 {
		ada.startDownload()
	}
	poll.Until(t, "the downloads end", func() bool { return s.Downloads(account) == 0 })
	s.SetPatience(time.Minute) // this one is read
	if got := ada.get("/usage/export?by=model").status; got != http.StatusOK {
		t.Errorf("one more download has status %d, want 200", got)
	}
	must(t, conn.(*net.TCPConn).SetReadBuffer(4<<20)) // reading what is in flight through a small buffer takes a minute
	text, err := io.ReadAll(rest)
	if complete := strings.HasSuffix(string(text), "0\r\n\r\n"); complete && err == nil {
		t.Error("a download that was not read looks complete")
	}
}
