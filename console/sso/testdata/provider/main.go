// Command provider is an identity provider for tests: the example server of zitadel/oidc, with groups. It reads the users
// from the file given as its first argument, accepts the redirect URL given as its second, and prints its issuer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
)

// withGroups adds the claim "groups" to what the example stores.
type withGroups struct {
	*storage.Storage
	groups map[string][]string // by the id of the user
}

// SetUserinfoFromToken implements op.Storage.
func (s withGroups) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	if err := s.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin); err != nil {
		return err
	}
	info.AppendClaims("groups", s.groups[subject])
	return nil
}

func main() {
	users, err := storage.StoreFromFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var extra map[string]struct{ Groups []string }
	if err := json.Unmarshal(text, &extra); err != nil {
		log.Fatal(err)
	}
	groups := map[string][]string{}
	for id, user := range extra {
		groups[id] = user.Groups
	}
	storage.RegisterClients(storage.WebClient("basegate", "secret", os.Args[2]))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	issuer := fmt.Sprintf("http://localhost:%d/", listener.Addr().(*net.TCPAddr).Port)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	router := exampleop.SetupServer(issuer, withGroups{storage.NewStorage(users), groups}, logger, false)
	fmt.Println(issuer)
	log.Fatal(http.Serve(listener, router))
}
