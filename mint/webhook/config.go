package webhook

import "time"

// A Config says where a webhook is and whom to believe. It is plain data: two that say the same are equal.
type Config struct {
	URL      string        // https, without user, query and fragment; its host is whom the certificate must be for
	CABundle string        // PEM of the authorities that may have signed the certificate; empty: the system's
	Timeout  time.Duration // 1 to 10 s
}
