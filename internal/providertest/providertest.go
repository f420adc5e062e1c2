// Package providertest is a provider of OpenID Connect for tests. It has no form: the parameter user of its authorization
// endpoint selects who signs in, and each user has an ID token and a userinfo response of their own.
package providertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
)

// The client that the provider knows.
const (
	ClientID     = "basegate"
	ClientSecret = "secret"
)

// User is what the provider says of a user, who is known by a name. The claim sub is that name unless it is set.
type User struct {
	IDToken        map[string]any // claims, beside those of the flow
	TokenResponse  map[string]any // members, beside those of the flow
	UserInfo       map[string]any // nil: as IDToken
	UserInfoStatus int            // 0: 200
}

// Provider is a running provider.
type Provider struct {
	*httptest.Server
	Scopes           []string // that discovery lists
	Users            map[string]User
	UserInfoRequests atomic.Int64 // since the start

	redirectURL string
	key         *ecdsa.PrivateKey

	mu    sync.Mutex
	codes map[string]url.Values // authorization requests, by code
}

const keyID = "k1"

// Start starts a provider, which runs until the test ends. Users may be changed while nobody signs in.
func Start(t *testing.T, redirectURL string, users map[string]User) *Provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{
		Scopes: []string{"openid", "email", "profile", "groups"}, Users: users,
		redirectURL: redirectURL, key: key, codes: map[string]url.Values{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.Handle("GET /keys", &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: keyID, Algorithm: oidc.ES256}}})
	mux.HandleFunc("GET /auth", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userInfo)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		"userinfo_endpoint": p.URL + "/userinfo", "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{oidc.ES256}, "scopes_supported": p.Scopes,
	})
}

// authorize sends the browser back with a code.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if _, known := p.Users[q.Get("user")]; !known || q.Get("redirect_uri") != p.redirectURL || q.Get("client_id") != ClientID || q.Get("response_type") != "code" {
		http.Error(w, "invalid_request", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	p.mu.Lock()
	p.codes[code] = q
	p.mu.Unlock()
	http.Redirect(w, r, p.redirectURL+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
}

// token exchanges a code, once, for the client that has the secret and the verifier of the request.
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	asked, known := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	p.mu.Unlock()
	id, secret, _ := r.BasicAuth()
	challenge := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !known || id != ClientID || secret != ClientSecret || r.FormValue("redirect_uri") != p.redirectURL ||
		asked.Get("code_challenge_method") != "S256" || asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) {
		respond(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		return
	}
	name := asked.Get("user")
	user := p.Users[name]
	claims := map[string]any{"sub": name}
	maps.Copy(claims, user.IDToken)
	maps.Copy(claims, map[string]any{
		"iss": p.URL, "aud": ClientID, "nonce": asked.Get("nonce"), "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	})
	text, err := json.Marshal(claims)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	response := map[string]any{"token_type": "Bearer", "expires_in": 3600}
	maps.Copy(response, user.TokenResponse)
	response["access_token"], response["id_token"] = name, oidctest.SignIDToken(p.key, keyID, oidc.ES256, string(text))
	respond(w, http.StatusOK, response)
}

func (p *Provider) userInfo(w http.ResponseWriter, r *http.Request) {
	p.UserInfoRequests.Add(1)
	name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	user := p.Users[name]
	if user.UserInfoStatus != 0 {
		http.Error(w, "no", user.UserInfoStatus)
		return
	}
	claims := map[string]any{"sub": name}
	maps.Copy(claims, user.IDToken)
	if user.UserInfo != nil {
		clear(claims)
		claims["sub"] = name
		maps.Copy(claims, user.UserInfo)
	}
	respond(w, http.StatusOK, claims)
}

func respond(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has left
}
