package lock

import "context"

// What only the tests look at.

// ProbeKey is what a probe asks for, RenewChunk bounds one renewal.
const (
	ProbeKey   = probeKey
	RenewChunk = renewChunk
)

// Scripts are what Redis is given to release and to renew.
var Scripts = []string{releaseScript, renewScript}

// Explain says what to do about an answer.
func Explain(err error) error { return explain(err) }

// InHand is how many locks are renewed.
func (r *Redis) InHand() int {
	r.renewer.mu.Lock()
	defer r.renewer.mu.Unlock()
	return len(r.renewer.held)
}

// Probe asks what a background probe does.
func (r *Redis) Probe(ctx context.Context) error { return r.nodes[0].Probe(ctx) }

// Fails notes a failure.
func (r *Redis) Fails(err error) { r.health.fail(err) }
