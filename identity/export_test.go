package identity

import (
	"context"
	"errors"
	"time"
)

// MaxSubjects is the number of subjects that a slowdown has in memory.
const MaxSubjects = maxSubjects

// MaxKnownBrowsers is the number of browsers that an account knows.
const MaxKnownBrowsers = maxKnownBrowsers

// The limits of open requests for access.
const (
	MaxAccessRequests     = maxAccessRequests
	MaxRequestsPerNetwork = maxRequestsPerNetwork
)

// Slowdown exports slowdown.
type Slowdown struct{ s *slowdown }

// NewAccountSlowdown returns a Slowdown with the settings for accounts.
func NewAccountSlowdown() Slowdown { return Slowdown{newSlowdown(accountSlowdown)} }

// NewNetworkSlowdown returns a Slowdown with the settings for networks.
func NewNetworkSlowdown() Slowdown { return Slowdown{newSlowdown(networkSlowdown)} }

// Begin counts a failed attempt, or returns the time until one is allowed.
func (s Slowdown) Begin(subject string) (retryIn time.Duration) {
	if tooMany, ok := errors.AsType[*TooManyAttemptsError](s.s.begin(context.Background(), subject)); ok {
		return tooMany.RetryIn
	}
	return 0
}

// TakeBack makes the last attempt a success.
func (s Slowdown) TakeBack(subject string) { _ = s.s.takeBack(context.Background(), subject) }

// Len returns the number of subjects in memory.
func (s Slowdown) Len() int { return len(s.s.subjects) }

// BlockHashing makes every password hash wait until unblock is called.
func (s *Sessions) BlockHashing() (unblock func()) {
	for range maxConcurrentHashes {
		s.hasher.running <- struct{}{}
	}
	return func() {
		for range maxConcurrentHashes {
			<-s.hasher.running
		}
	}
}

// CatchUps returns how often unknown secrets have made the snapshot catch up with the database.
func (k *Keys) CatchUps() int {
	k.unknown.reading.Lock()
	defer k.unknown.reading.Unlock()
	return k.unknown.reads
}

// StoreAccount stores an account in the snapshot, as if it had been read.
func (k *Keys) StoreAccount(id, email string) {
	k.snapshot.Load().storeAccount(&accountFields{Principal: Principal{AccountID: id, Email: email}})
}
