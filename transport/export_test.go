package transport

// LimitAcquires sets how many unanswered acquires a conversation may have: a
// program under the race detector cannot have as many goroutines as the real
// bound allows. It must be called before Start.
func (s *Server) LimitAcquires(n int) { s.service.maxAcquires = n }

// LimitUnary sets how many unary acquires and watches there may be. It must be
// called before Start.
func (s *Server) LimitUnary(acquires, watches int) {
	s.service.acquires, s.service.watches = make(chan struct{}, acquires), make(chan struct{}, watches)
}

// Bounds for tests.
const (
	MaxCalls   = maxCalls
	MaxHeld    = maxHeld
	MaxClaimed = maxClaimed
	MaxEvents  = maxEvents
	MaxRenews  = maxRenews
	MaxQueue   = maxQueue

	ClientPing = clientPing
)
