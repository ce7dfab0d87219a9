// Package instance is one output "mintlog" of a Fluent Bit, without what links it there.
package instance

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

// A Configuration is what the output's section says. Fluent Bit keeps host, port and tls to itself, so there are none of
// these names.
type Configuration struct {
	// Address (address) is the URL of the NATS with the stream, or several with commas between. It is needed. A URL that
	// begins with tls:// is checked against the certificates of the system.
	Address string
	// CredentialsFile (credentials_file) is the NATS credentials to publish with; empty: none.
	CredentialsFile string
	// NKeyFile (nkey_file) is the seed of the nkey to publish with, in the place of credentials; empty: none.
	NKeyFile string
	// Name (node) tells this Fluent Bit from others in the source of events; by default it is the host's.
	Name string
	// TagPrefix (tag_prefix) is what the tags of audit logs begin with; by default "audit.". Chunks with another are not
	// looked at.
	TagPrefix string
	// Timeout (timeout) is how long a flush waits for the stream before the chunk is handed back; by default 10s.
	Timeout time.Duration
	// MetricsAddress (metrics_address) is where /metrics is served over HTTP; empty: nowhere.
	MetricsAddress string
}

// Bounds and defaults.
const (
	DefaultTagPrefix = "audit."
	DefaultTimeout   = 10 * time.Second

	minTimeout = time.Second
	maxTimeout = 5 * time.Minute
)

var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// Configure reads a section. property returns the value of a key, empty if the section has none. No error quotes the
// address, which may have a password in it.
func Configure(property func(key string) string) (Configuration, error) {
	c := Configuration{
		Address:         strings.TrimSpace(property("address")),
		CredentialsFile: property("credentials_file"),
		NKeyFile:        property("nkey_file"),
		Name:            property("node"),
		TagPrefix:       property("tag_prefix"),
		Timeout:         DefaultTimeout,
		MetricsAddress:  property("metrics_address"),
	}
	if c.TagPrefix == "" {
		c.TagPrefix = DefaultTagPrefix
	}
	var err error
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
			return Configuration{}, fmt.Errorf("node is not set, and the host has no name: %w", err)
		}
	}
	if text := property("timeout"); text != "" {
		if c.Timeout, err = time.ParseDuration(text); err != nil {
			return Configuration{}, fmt.Errorf("timeout: %w", err)
		}
	}
	return c, c.validate()
}

func (c *Configuration) validate() error {
	switch {
	case c.Address == "":
		return errors.New("address is needed: the URL of the NATS with the stream")
	case !nodeName.MatchString(c.Name):
		return errors.New("node: it is a name of letters, digits, '.', '_' and '-', of 253 characters at most")
	case c.Timeout < minTimeout || c.Timeout > maxTimeout:
		return fmt.Errorf("timeout: it is between %s and %s", minTimeout, maxTimeout)
	}
	for _, address := range strings.Split(c.Address, ",") {
		if err := checkAddress(strings.TrimSpace(address)); err != nil {
			return err
		}
	}
	if c.MetricsAddress != "" {
		if _, _, err := net.SplitHostPort(c.MetricsAddress); err != nil {
			return fmt.Errorf("metrics_address: %w", err)
		}
	}
	if c.CredentialsFile != "" && c.NKeyFile != "" {
		return errors.New("nkey_file: credentials_file says already who this is")
	}
	return errors.Join(checkFile("credentials_file", c.CredentialsFile), checkFile("nkey_file", c.NKeyFile))
}

func checkFile(key, name string) error {
	if name == "" {
		return nil
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return file.Close()
}

func checkAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return errors.New("address: it is a URL like nats://nats.cozy-mintlog:4222")
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return nil
	}
	return errors.New("address: its scheme is nats, tls, ws or wss")
}
