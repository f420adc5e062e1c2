package identity

import "time"

// MaxKnownBrowsers is the number of browsers that an account knows.
const MaxKnownBrowsers = maxKnownBrowsers

// The limits of open requests for access.
const (
	MaxAccessRequests     = maxAccessRequests
	MaxRequestsPerNetwork = maxRequestsPerNetwork
)

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

// DelayCatchUps makes the next read because of unknown secrets begin after a time.
func (k *Keys) DelayCatchUps(by time.Duration) {
	k.unknown.reading.Lock()
	defer k.unknown.reading.Unlock()
	k.unknown.next = time.Now().Add(by)
}

// PauseAfter returns the pause after a read that took so long.
func PauseAfter(err error, took, least time.Duration) time.Duration {
	return pauseAfter(err, took, least)
}

// StoreAccount stores an account in the snapshot, as if it had been read.
func (k *Keys) StoreAccount(id, email string) {
	k.snapshot.Load().storeAccount(&snapshotAccount{Account: Account{ID: id, Email: email}})
}
