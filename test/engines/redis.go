package engines

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// Redis is a running Redis with one password for everybody.
type Redis struct {
	*server
	address string
	stored  string // its password, in whatever form
}

// StartRedis starts it with a password that nobody knows. Progress goes to progress, a line each; nil: nowhere.
func StartRedis(ctx context.Context, progress io.Writer) (*Redis, error) {
	s, programs, err := newServer(ctx, "Redis", progress, program{"redis-server", "redis-server"})
	if err != nil {
		return nil, err
	}
	r := &Redis{server: s}
	if err := r.serve(ctx, programs[0]); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

func (r *Redis) serve(ctx context.Context, program string) error {
	var err error
	if r.address, err = process.FreeAddress(); err != nil {
		return err
	}
	if err := r.configure(rand.Text()); err != nil {
		return err
	}
	return r.start(ctx, process.Options{
		Name: "Redis", Path: program, Arguments: []string{r.path("redis.conf")},
		Ready: func(ctx context.Context) error { return r.Login(ctx, "default", r.stored) },
	})
}

// configure writes redis.conf. A value that is quoted may hold anything but a line end, a quote and a backslash.
func (r *Redis) configure(stored string) error {
	if strings.ContainsAny(stored, "\"\\\r\n") {
		return errors.New("a password with a line end, a quote or a backslash cannot stand in redis.conf")
	}
	_, port, err := net.SplitHostPort(r.address)
	if err != nil {
		return err
	}
	r.stored = stored
	return r.write("redis.conf", fmt.Sprintf("bind %s\nport %s\ndir %s\nsave \"\"\nappendonly no\nrequirepass \"%s\"\n",
		host, port, r.path(), stored))
}

// Version is what Redis calls itself.
func (r *Redis) Version(ctx context.Context) (string, error) {
	answer, err := r.ask(ctx, "default", r.stored, "INFO", "server")
	if err != nil {
		return "", err
	}
	_, after, _ := strings.Cut(answer, "redis_version:")
	version, _, found := strings.Cut(after, "\r\n")
	if !found {
		return "", errors.New("Redis does not say its version")
	}
	return version, nil
}

// Apply sets the one password of Redis: it is written to redis.conf as requirepass, and Redis is restarted. Only the
// user "default" has it.
func (r *Redis) Apply(ctx context.Context, username, stored string) error {
	if username != "default" {
		return fmt.Errorf("Redis has no user %s, only default", username)
	}
	if err := r.configure(stored); err != nil {
		return err
	}
	return r.process.Restart(ctx)
}

// Login logs in and asks for an answer.
func (r *Redis) Login(ctx context.Context, username, password string) error {
	answer, err := r.ask(ctx, username, password, "PING")
	if err == nil && answer != "+PONG" {
		err = fmt.Errorf("Redis answers PING with %q", answer)
	}
	return err
}

// ask logs in and returns the answer to a command: a line, or the bytes of a string.
func (r *Redis) ask(ctx context.Context, username, password string, command ...string) (string, error) {
	connection, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", r.address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(10 * time.Second)) // fails on a closed connection only
	answers := bufio.NewReader(connection)
	answer, err := tell(connection, answers, "AUTH", username, password)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(answer, "-WRONGPASS ") {
		return "", fmt.Errorf("%w: Redis says WRONGPASS", ErrRefused)
	}
	if answer != "+OK" {
		return "", fmt.Errorf("Redis answers AUTH with %q", answer)
	}
	return tell(connection, answers, command...)
}

func tell(connection io.Writer, answers *bufio.Reader, command ...string) (string, error) {
	message := fmt.Sprintf("*%d\r\n", len(command))
	for _, word := range command {
		message += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(connection, message); err != nil {
		return "", err
	}
	line, err := answers.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	var length int
	if _, err := fmt.Sscanf(line, "$%d", &length); err != nil {
		return line, nil // no string
	}
	content := make([]byte, length+len("\r\n"))
	_, err = io.ReadFull(answers, content)
	return string(content), err
}
