package stream

import (
	"context"
	"fmt"
)

// ready says by nil that events can be published. Who creates everything has it from Open on. To who creates nothing
// the consumers may be missing, and the stream of events would acknowledge an event and keep nothing of it: they are
// looked up once on each connection, for a server may have come back empty.
func (s *Stream) ready(ctx context.Context) error {
	if !s.options.Existing {
		return nil
	}
	connection := s.conn.Stats().Reconnects + 1
	if s.readyOn.Load() == connection {
		return nil
	}
	for consumer := range consumerKinds {
		if _, err := s.lookUpConsumer(ctx, consumer); err != nil {
			return fmt.Errorf("look up consumer %s, which other parts create: %w", consumer, err)
		}
	}
	s.readyOn.Store(connection)
	return nil
}
