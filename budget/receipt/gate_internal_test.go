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

// newGate returns a gate with streams that have begun.
func newGate(streams int) *gate {
	var g gate
	for range streams {
		g.begin()
	}
	return &g
}

func TestStreamsThatEndTogetherHaveOneLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(6)
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

func TestGroupDoesNotWaitWhenNoOtherStreamCanJoin(t *testing.T) {
	for _, c := range []struct {
		name string
		last func(*gate)
	}{
		{"the last stream has joined and queued its write", func(g *gate) { g.join(t.Context()); g.end() }},
		{"the last stream fails", func(g *gate) { g.end() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate(4)
				g.join(t.Context()) // goes on at once, so that the next one waits
				g.end()
				began := time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					g.join(t.Context())
					g.end()
				}()
				synctest.Wait()
				g.join(t.Context())
				g.end()
				synctest.Wait()
				select {
				case <-done:
					t.Fatal("the leader goes on while a stream can join")
				default:
				}
				c.last(g)
				<-done
				if waited := time.Since(began); waited != 0 {
					t.Errorf("the leader went on after %v, want at once", waited)
				}
				if g.open != 0 || g.forming() != nil {
					t.Errorf("%d streams are open, and the group %p forms, want none", g.open, g.forming())
				}
			})
		})
	}
}

func TestOnlyStreamDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, began := newGate(0), time.Now()
		for range 3 {
			g.begin()
			if _, leads := g.join(t.Context()); !leads || time.Since(began) != 0 {
				t.Errorf("the stream leads: %v, after %v, want at once", leads, time.Since(began))
			}
			g.end()
		}
	})
}

func TestGroupGoesOnWithoutItsLeader(t *testing.T) {
	g := newGate(3)
	g.join(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	leader := &Sealed{log: &Log{}, draft: &Draft{}}
	leader.group, leader.leads = g.join(ctx) // whose client is gone
	follower := &Sealed{log: leader.log, draft: &Draft{}, group: leader.group}
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
