package identity

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"basegate/database"
)

// ErrBadPassword is returned for a password that an account may not have.
var ErrBadPassword = errors.New("this cannot be a password")

// MinPassword is the length of the shortest password, in characters.
const MinPassword = 10

// maxPassword limits a password, in characters.
const maxPassword = 200

// checkPassword returns ErrBadPassword for a password that is too short, too long, or the account's address.
func checkPassword(password, email string) error {
	switch n := utf8.RuneCountInString(password); {
	case !utf8.ValidString(password):
		return fmt.Errorf("%w: it is not text", ErrBadPassword)
	case n < MinPassword:
		return fmt.Errorf("%w: it needs at least %d characters", ErrBadPassword, MinPassword)
	case n > maxPassword:
		return fmt.Errorf("%w: it may have at most %d characters", ErrBadPassword, maxPassword)
	case strings.EqualFold(password, email):
		return fmt.Errorf("%w: it is the e-mail address", ErrBadPassword)
	}
	return nil
}

// SetPassword sets the password of an account, and ends all its sessions. The error may be ErrNoAccount or
// ErrBadPassword.
func (s *Sessions) SetPassword(ctx context.Context, email, password string) error {
	if err := checkPassword(password, email); err != nil {
		return err
	}
	passwordHash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	return write(ctx, s.db, "set password", func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		_, err = storePassword(ctx, tx, account, passwordHash)
		return err
	})
}

// ChangePassword sets the password of an account, whose user is signed in, if c.Password is its present one. It ends all
// sessions of the account and returns the tokens of a new one. Failures count for such changes of the account, neither
// for its sign-ins nor for the network, so strangers who fail to sign in do not delay it. The error may be
// ErrBadCredentials, a *TooManyAttemptsError or ErrBadPassword.
func (s *Sessions) ChangePassword(ctx context.Context, c Credentials, next string) (SignedIn, error) {
	if err := checkPassword(next, c.Email); err != nil {
		return SignedIn{}, err
	}
	l, err := s.checkCredentials(ctx, c, accountThrottle.of("change "+strings.ToLower(c.Email)))
	if err != nil {
		return SignedIn{}, err
	}
	passwordHash, err := s.hasher.hash(ctx, next)
	if err != nil {
		return SignedIn{}, err
	}
	return s.signIn(ctx, "change password", "", func(tx database.Tx, tokens SignedIn) error {
		present, err := selectGeneration(ctx, tx, l.account.ID)
		if err != nil {
			return err
		}
		if present != l.generation { // another change was faster, so c.Password is not the present password
			return ErrBadCredentials
		}
		return setPasswordAndSignIn(ctx, tx, l.account, passwordHash, tokens)
	})
}

// setPasswordAndSignIn stores a password, ends all sessions of the account and begins a new one.
func setPasswordAndSignIn(ctx context.Context, tx database.Tx, a Account, passwordHash string, tokens SignedIn) error {
	generation, err := storePassword(ctx, tx, a, passwordHash)
	if err != nil {
		return err
	}
	return insertSignIn(ctx, tx, a.ID, generation, tokens)
}

// storePassword stores a password's hash and ends all sessions of the account. It returns the password's generation.
func storePassword(ctx context.Context, tx database.Tx, account Account, passwordHash string) (generation int64, err error) {
	if generation, err = upsertPasswordHash(ctx, tx, account.ID, passwordHash); err != nil {
		return 0, err
	}
	if err := deleteOf(ctx, tx, account.ID, signIns...); err != nil {
		return 0, err
	}
	return generation, insertAuditEntry(ctx, tx, "set password", account.Email, "")
}

// PasswordCost is the cost of argon2id. Each hash contains that which it was made with, so another applies to new hashes
// only.
type PasswordCost struct {
	Memory  uint32 // KiB
	Passes  uint32
	Threads uint8
}

// defaultCost is OWASP's first recommendation for argon2id.
var defaultCost = PasswordCost{Memory: 19 << 10, Passes: 2, Threads: 1}

const (
	saltBytes   = 16
	digestBytes = 32
)

// maxConcurrentHashes limits the memory of sign-ins, which anyone can attempt: a hash takes 19 MiB.
const maxConcurrentHashes = 2

// passwordHasher hashes passwords with argon2id, a limited number at a time.
type passwordHasher struct {
	cost    PasswordCost
	running chan struct{} // holds a value for each hash being computed
}

func newPasswordHasher(cost PasswordCost) *passwordHasher {
	return &passwordHasher{cost: cmp.Or(cost, defaultCost), running: make(chan struct{}, maxConcurrentHashes)}
}

// hash returns the hash of a password in the PHC string format, with a new salt. The error is that of ctx.
func (h *passwordHasher) hash(ctx context.Context, password string) (string, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails: crypto/rand ends the program instead
	digest, err := h.digest(ctx, password, salt, h.cost)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.cost.Memory, h.cost.Passes, h.cost.Threads,
		encodeBase64(salt), encodeBase64(digest)), nil
}

// matches reports whether a hash is the password's. If it is empty, since the account does not exist or has no password, no
// password matches, and finding that takes as long: the time of a sign-in does not reveal which addresses have accounts.
// The error is that of ctx, or says that passwordHash is malformed.
func (h *passwordHasher) matches(ctx context.Context, password, passwordHash string) (bool, error) {
	cost, salt, want := h.cost, make([]byte, saltBytes), []byte(nil)
	if passwordHash != "" {
		var err error
		if cost, salt, want, err = parsePasswordHash(passwordHash); err != nil {
			return false, err
		}
	}
	got, err := h.digest(ctx, password, salt, cost)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1, nil
}

// digest waits until fewer than maxConcurrentHashes run, then computes a hash.
func (h *passwordHasher) digest(ctx context.Context, password string, salt []byte, cost PasswordCost) ([]byte, error) {
	select {
	case h.running <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to hash a password: %w", context.Cause(ctx))
	}
	defer func() { <-h.running }()
	return argon2.IDKey([]byte(password), salt, cost.Passes, cost.Memory, cost.Threads, digestBytes), nil
}

// parsePasswordHash parses an argon2id hash in the PHC string format.
func parsePasswordHash(text string) (p PasswordCost, salt, digest []byte, err error) {
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return p, nil, nil, errors.New("read password: this is not a hash of argon2id")
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.Memory, &p.Passes, &p.Threads); err != nil {
		return p, nil, nil, fmt.Errorf("read password: %w", err)
	}
	salt, err = base64.RawStdEncoding.DecodeString(parts[4])
	if err == nil {
		digest, err = base64.RawStdEncoding.DecodeString(parts[5])
	}
	if err != nil {
		return p, nil, nil, fmt.Errorf("read password: %w", err)
	}
	return p, salt, digest, nil
}

func encodeBase64(b []byte) string { return base64.RawStdEncoding.EncodeToString(b) }
