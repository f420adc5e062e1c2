package console_test

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
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
)

// identityProvider is an OpenID Connect provider. It shows no form: the parameter user of its authorization endpoint selects
// who signs in. ID tokens have no groups, which only its userinfo endpoint gives.
type identityProvider struct {
	*httptest.Server
	users       map[string]map[string]any // claims
	redirectURL string
	key         *ecdsa.PrivateKey

	mu    sync.Mutex
	codes map[string]url.Values // authorization requests, by code
}

const providerKey = "k1"

func startProvider(t *testing.T, redirectURL string, users map[string]map[string]any) *identityProvider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	p := &identityProvider{users: users, redirectURL: redirectURL, key: key, codes: map[string]url.Values{}}
	keys := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: providerKey, Algorithm: oidc.ES256}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"userinfo_endpoint": p.URL + "/userinfo", "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{oidc.ES256}, "scopes_supported": []string{"openid", "email", "profile", "groups"},
		})
	})
	mux.Handle("GET /keys", keys)
	mux.HandleFunc("GET /auth", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userInfo)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// authorize sends the browser back with a code.
func (p *identityProvider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if p.users[q.Get("user")] == nil || q.Get("redirect_uri") != p.redirectURL || q.Get("client_id") != "basegate" || q.Get("response_type") != "code" {
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
func (p *identityProvider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	asked, known := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	p.mu.Unlock()
	id, secret, _ := r.BasicAuth()
	challenge := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !known || id != "basegate" || secret != "secret" || r.FormValue("redirect_uri") != p.redirectURL ||
		asked.Get("code_challenge_method") != "S256" || asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant"})
		return
	}
	user := asked.Get("user")
	claims := maps.Clone(p.users[user])
	delete(claims, "groups")
	maps.Copy(claims, map[string]any{
		"iss": p.URL, "aud": "basegate", "sub": user, "nonce": asked.Get("nonce"), "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	})
	text, err := json.Marshal(claims)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"access_token": user, "token_type": "Bearer", "expires_in": 3600,
		"id_token": oidctest.SignIDToken(p.key, providerKey, oidc.ES256, string(text)),
	})
}

func (p *identityProvider) userInfo(w http.ResponseWriter, r *http.Request) {
	const prefix = "Bearer "
	user := r.Header.Get("Authorization")[len(prefix):]
	claims := maps.Clone(p.users[user])
	claims["sub"] = user
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(claims)
}
