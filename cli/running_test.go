package cli_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/gateway"
)

// gateway: one runs from here on to the end of the script, by config.yaml, with $MOCK as every backend. $GATEWAY is its
// address.
func runGateway(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: gateway")
	}
	c, err := config.Load(ts.MkAbs("config.yaml"))
	ts.Check(err)
	mock, err := url.Parse(ts.Getenv("MOCK"))
	ts.Check(err)
	c.Database.Path = ts.MkAbs(c.Database.Path)
	for _, m := range c.Models {
		for i := range m.Backends {
			m.Backends[i].URL = mock
		}
	}
	g, err := gateway.New(context.Background(), c, zap.NewNop())
	ts.Check(err)
	ts.Defer(func() { ts.Check(g.Stop(context.Background())) })
	ts.Check(g.Start(context.Background()))
	ts.Setenv("GATEWAY", g.Addr().String())
}

// soon is how long a running gateway may take to obey, and as much again for a slow machine.
const soon = 5 * time.Second

// ask STATUS SECRET BODY TEXT: a completion is asked for until it is answered with the status and the text, which must be
// soon. What is answered otherwise until then may be charged too.
func ask(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: ask STATUS SECRET BODY TEXT")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		status, answer, err := complete(ctx, "http://"+ts.Getenv("GATEWAY"), args[1], args[2])
		ts.Check(err)
		if status == want && strings.Contains(answer, args[3]) {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			ts.Fatalf("it is still %d: %s", status, answer)
		}
	}
}

func complete(ctx context.Context, base, secret, body string) (status int, answer string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+secret)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", fmt.Errorf("read answer: %w", err)
	}
	return response.StatusCode, string(text), nil
}
