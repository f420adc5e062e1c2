package receipt

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func (g *gate) forming() *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.next
}

func TestStreamsThatEndTogetherHaveOneLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		began := time.Now()
		alone, leads := g.join(t.Context())
		if !leads || time.Since(began) != 0 {
			t.Fatalf("the first stream leads: %v, after %v, want at once", leads, time.Since(began))
		}
		var led *group
		go func() { led, leads = g.join(t.Context()) }()
		synctest.Wait()
		for range 3 {
			joined, leads := g.join(t.Context())
			if leads || joined == alone || joined != g.forming() || time.Since(began) != 0 {
				t.Errorf("a later stream leads: %v, after %v, want it in the group that forms, at once", leads, time.Since(began))
			}
		}
		forming := g.forming()
		time.Sleep(pace) // of the bubble, so that the group is complete
		synctest.Wait()
		if led != forming || !leads || g.forming() != nil {
			t.Errorf("got the group %p, which leads: %v, want %p, and nobody that waits", led, leads, forming)
		}
	})
}

func TestGroupGoesOnWithoutItsLeader(t *testing.T) {
	var g gate
	g.join(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	leader := &Sealed{log: &Log{}}
	leader.group, leader.leads = g.join(ctx) // whose client is gone
	follower := &Sealed{log: leader.log, group: leader.group}
	done := make(chan struct{})
	go func() {
		follower.AwaitGroup()
		follower.leave() // which is the leader's to do
		close(done)
	}()
	select {
	case <-done:
		t.Error("a stream goes on before the leader of its group")
	default:
	}
	leader.AwaitGroup()
	leader.leave()
	leader.leave() // once it has its receipt, and when it returns
	<-done
}
