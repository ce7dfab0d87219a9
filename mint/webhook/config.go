package webhook

import "time"

// A Config says where a webhook is and whom to believe.
type Config struct {
	URL        string        // https, without user, query and fragment
	ServerName string        // whom its certificate must be for
	CABundle   string        // PEM of the authorities that may have signed it; empty: the system's
	Timeout    time.Duration // 1 to 30 s
}
