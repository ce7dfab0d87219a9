package engines

import (
	"context"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// ClickHouse is a running ClickHouse.
type ClickHouse struct {
	*server
	address  string
	password string            // of the user "tests", who has it read its files anew
	settings map[string]string // by path below <users>
}

// StartClickHouse starts it. Progress goes to progress, a line each; nil: nowhere.
func StartClickHouse(ctx context.Context, progress io.Writer) (*ClickHouse, error) {
	s, programs, err := newServer(ctx, "ClickHouse", progress, program{"clickhouse-server", "clickhouse-server"})
	if err != nil {
		return nil, err
	}
	c := &ClickHouse{server: s, password: rand.Text(), settings: map[string]string{}}
	if err := c.serve(ctx, programs[0]); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *ClickHouse) serve(ctx context.Context, program string) error {
	ports := make([]string, 2)
	for i := range ports {
		address, err := process.FreeAddress()
		if err != nil {
			return err
		}
		if _, ports[i], err = net.SplitHostPort(address); err != nil {
			return err
		}
	}
	c.address = net.JoinHostPort(host, ports[0])
	if err := errors.Join(
		c.write("config.xml", `<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>`+host+`</listen_host><http_port>`+ports[0]+`</http_port><tcp_port>`+ports[1]+`</tcp_port>
  <path>`+c.path("data")+`/</path><tmp_path>`+c.path("temporary")+`/</tmp_path>
  <users_config>`+c.path("users.xml")+`</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <mark_cache_size>5368709</mark_cache_size>
</yandex>
`),
		c.write("users.xml", `<yandex>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users><tests><password>`+c.password+`</password><networks><ip>`+host+`</ip></networks><profile>default</profile><quota>default</quota></tests></users>
</yandex>
`)); err != nil {
		return err
	}
	return c.start(ctx, process.Options{
		Name: "ClickHouse", Path: program, Arguments: []string{"--config-file=" + c.path("config.xml")},
		Ready: func(ctx context.Context) error {
			_, err := c.Version(ctx)
			return err
		},
	})
}

// Version is what ClickHouse calls itself.
func (c *ClickHouse) Version(ctx context.Context) (string, error) {
	return c.query(ctx, "tests", c.password, "SELECT version()")
}

// Apply sets a user's password, whose name has no dot (this ClickHouse takes it for a path), as ClickHouse's operator does with what the application's chart renders for it.
func (c *ClickHouse) Apply(ctx context.Context, username, stored string) error {
	settings := maps.Clone(c.settings)
	for setting, value := range map[string]string{"password_sha256_hex": stored, "networks/ip": host, "profile": "default", "quota": "default"} {
		settings[username+"/"+setting] = value
	}
	return c.Configure(ctx, settings)
}

// Configure writes a users file with these settings alone, by their path below <users> as ClickHouse's operator takes
// them ("app/password_sha256_hex"), and has ClickHouse read it.
func (c *ClickHouse) Configure(ctx context.Context, settings map[string]string) error {
	users, err := usersFile(settings)
	if err != nil {
		return err
	}
	if err := c.write("users.d/accounts.xml", users); err != nil {
		return err
	}
	c.settings = settings
	_, err = c.query(ctx, "tests", c.password, "SYSTEM RELOAD CONFIG")
	return err
}

// usersFile nests the settings by their paths.
func usersFile(settings map[string]string) (string, error) {
	var file strings.Builder
	var open []string
	turnTo := func(path []string) {
		common := 0
		for common < min(len(open), len(path)) && open[common] == path[common] {
			common++
		}
		for _, name := range slices.Backward(open[common:]) {
			fmt.Fprintf(&file, "</%s>", name)
		}
		for _, name := range path[common:] {
			fmt.Fprintf(&file, "<%s>", name)
		}
		open = path
	}
	for _, path := range slices.Sorted(maps.Keys(settings)) {
		turnTo(append([]string{"yandex", "users"}, strings.Split(path, "/")...))
		if err := xml.EscapeText(&file, []byte(settings[path])); err != nil {
			return "", err
		}
	}
	turnTo(nil)
	return file.String(), nil
}

// Login logs in over HTTP.
func (c *ClickHouse) Login(ctx context.Context, username, password string) error {
	_, err := c.query(ctx, username, password, "SELECT 1")
	return err
}

func (c *ClickHouse) query(ctx context.Context, user, password, statement string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+"/", strings.NewReader(statement))
	if err != nil {
		return "", err
	}
	request.SetBasicAuth(user, password)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	code, _, _ := strings.Cut(strings.TrimPrefix(string(body), "Code: "), ",")
	switch {
	case response.StatusCode == http.StatusOK:
		return strings.TrimSpace(string(body)), nil
	case response.StatusCode == http.StatusUnauthorized, code == "192", code == "193", code == "516": // unknown user, wrong password, either
		return "", fmt.Errorf("%w: ClickHouse answers with code %s", ErrRefused, code)
	}
	return "", fmt.Errorf("ClickHouse answers %s with code %s", response.Status, code) // its message may quote a setting
}
