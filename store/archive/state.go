package archive

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// A State is what VictoriaLogs says of itself.
type State struct {
	// Retention is how long it keeps what it is given; 0: it does not say, behind a proxy that hides its metrics.
	Retention time.Duration
	// Clock is its time in whole seconds, zero if it does not say; Asked and Answered are ours around that.
	Clock, Asked, Answered time.Time
}

// State asks VictoriaLogs for what it serves queries with, its time and its retention.
func (a *Archive) State(ctx context.Context) (State, error) {
	var s State
	if _, err := a.collect(ctx, "_time:1s | limit 1"); err != nil {
		return s, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/health", nil)
	if err != nil {
		return s, fmt.Errorf("ask for the archive's health: %w", err)
	}
	s.Asked = time.Now()
	answer, err := a.client.Do(request)
	if err != nil {
		return s, fmt.Errorf("ask for the archive's health: %w", err)
	}
	s.Answered = time.Now()
	defer answer.Body.Close()
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		s.Clock = at
	}
	if bounds, err := a.retention(ctx); err == nil {
		s.Retention = bounds.past
	}
	return s, nil
}
