package budget

import "basegate/budget/quota"

// Standing is one cap of a key or an account, and what is used of it.
type Standing Exceeded

// Standings returns all caps of the payer that are set, by the caps currently configured: the key's, then the account's.
// It returns none if the key may not be used.
func (l *Ledger) Standings(p Payer) []Standing {
	if l.refreshCaps(&p) != nil {
		return nil
	}
	return l.standings(&p)
}

// AccountStandings returns the caps of an account that are set, without those of its keys.
func (l *Ledger) AccountStandings(account string, caps quota.Caps) []Standing {
	return l.standings(&Payer{Account: account, AccountCaps: caps})
}

func (l *Ledger) standings(p *Payer) []Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucket(l.owners(p)).standings(p)
}

func (b bucket) standings(p *Payer) (all []Standing) {
	caps := b.capChecks(p)
	for _, c := range caps.all() {
		all = append(all, Standing(*c.exceeded(b.date)))
	}
	return all
}
