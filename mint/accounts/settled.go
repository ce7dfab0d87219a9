package accounts

import (
	"hash/maphash"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/cluster"
)

// settled remembers in which state each application was last found, or brought, in step, so that what the informers tell
// of our own writes costs no request. What it remembers only ever lets nothing be done: whatever is to be done is decided
// by what the API server says. It holds about a hundred bytes an application.
type settled struct {
	seed maphash.Seed

	mu   sync.Mutex
	look map[types.NamespacedName]look
}

// A look is what came of the last one at an application whose Role is there, or was.
type look struct {
	state uint64    // in which it was in step
	until time.Time // when it is looked at again though nothing has changed; zero: it was not in step
}

func newSettled() *settled {
	return &settled{seed: maphash.MakeSeed(), look: map[types.NamespacedName]look{}}
}

// state stands for all that decides about an application and is watched: it is another after any change of any of it,
// be it one that decides nothing. What is not watched (the grant, the Secrets of charts, what webhooks would answer) is
// looked at when the state has changed, and each inspection.
func (m *settled) state(s situation, d *cluster.Definition) uint64 {
	release := s.release
	state := m.digest(string(release.UID), release.ResourceVersion, string(d.UID), d.ResourceVersion, s.sight.String())
	for _, secret := range s.ofRelease() {
		state += m.digest(secret.Name, string(secret.UID), secret.ResourceVersion) // in whatever order
	}
	return state
}

func (m *settled) digest(of ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	for _, one := range of {
		_, _ = h.WriteString(one)
		_ = h.WriteByte(0) // in none of them
	}
	return h.Sum64()
}

// until is how long an application in this state need not be looked at; 0 if it is to be looked at now, or in a moment.
func (m *settled) until(name types.NamespacedName, state uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.look[name]
	if l.state != state {
		return 0
	}
	if wait := l.until.Sub(now); wait >= time.Second {
		return wait
	}
	return 0
}

// inStep remembers that nothing is to be done for an application before its state changes or that time has come.
func (m *settled) inStep(name types.NamespacedName, state uint64, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look[name] = look{state, until}
}

// hasRole remembers that an application's Role is there.
func (m *settled) hasRole(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look[name] = look{}
}

// mayLackRole reports whether nothing is known of an application's Role.
func (m *settled) mayLackRole(name types.NamespacedName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.look[name]
	return !known
}

func (m *settled) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.look, name)
}
