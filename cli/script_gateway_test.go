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
	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/gateway/logwriter"
)

// startGateway is the command `startgateway`: it runs the gateway of config.yaml until the end of the script, with $MOCK
// as every backend, and sets $GATEWAY to its address.
func startGateway(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: startgateway")
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
	log := logwriter.New(io.Discard)
	ts.Defer(func() { ts.Check(log.Close(applyTimeout)) })
	g, err := gateway.New(context.Background(), c, "dev-status", zap.NewNop(), log)
	ts.Check(err)
	ts.Defer(func() { ts.Check(g.Stop(context.Background())) })
	ts.Check(g.Start(context.Background()))
	ts.Setenv("GATEWAY", g.Addr().String())
}

// applyTimeout limits the wait for a change at a running gateway, which applies it within a second unless the machine stalls.
const applyTimeout = 5 * time.Minute

// complete is the command `complete STATUS SECRET BODY TEXT`: it requests completions from $GATEWAY until one has the
// status and contains the text, at most for applyTimeout. The others may be charged too.
func complete(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: complete STATUS SECRET BODY TEXT")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), applyTimeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		status, body, err := post(ctx, "http://"+ts.Getenv("GATEWAY")+"/v1/completions", args[1], args[2])
		ts.Check(err)
		if status == want && strings.Contains(body, args[3]) {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			ts.Fatalf("got %d %s after %v, want %d with %s", status, body, applyTimeout, want, args[3])
		}
	}
}

// child is the command `child SECRET BODY`: it has a key of $GATEWAY make another one, and sets $CHILD to its secret.
func child(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: child SECRET BODY")
	}
	ctx, cancel := context.WithTimeout(context.Background(), applyTimeout)
	defer cancel()
	status, body, err := post(ctx, "http://"+ts.Getenv("GATEWAY")+"/v1/keys", args[0], args[1])
	ts.Check(err)
	if status != http.StatusCreated {
		ts.Fatalf("got %d %s", status, body)
	}
	ts.Setenv("CHILD", gjson.Get(body, "secret").Str)
}

func post(ctx context.Context, address, secret, body string) (status int, responseBody string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
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
		return 0, "", fmt.Errorf("read response: %w", err)
	}
	return response.StatusCode, string(text), nil
}
