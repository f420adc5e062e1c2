package identity

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

// StoreAccount stores an account in the snapshot, as if it had been read.
func (k *Keys) StoreAccount(id, email string) {
	k.snapshot.Load().storeAccount(&snapshotAccount{Account: Account{ID: id, Email: email}})
}
