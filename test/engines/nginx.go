package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A Site is what the chart of a web application behind nginx brings to its pods.
type Site struct {
	Server  string // nginx's configuration of the server
	Compose string // the script that composes the file of passwords from the mounted account Secrets
}

// The paths in a site that stand for those of its pods.
const (
	sitePort  = "8080"
	siteFiles = "/srv/www"
	siteUsers = "/run/users/htpasswd"
)

// Nginx is a running nginx that serves a site.
type Nginx struct {
	*server
	program string
	site    Site
	address string
	mounted map[string]string // by path
}

// StartNginx starts nginx with a site. Progress goes to progress, a line each; nil: nowhere.
func StartNginx(ctx context.Context, progress io.Writer, site Site) (*Nginx, error) {
	s, programs, err := newServer(ctx, "nginx", progress, program{"nginx", "nginx"})
	if err != nil {
		return nil, err
	}
	n := &Nginx{server: s, program: programs[0], site: site, mounted: map[string]string{}}
	if err := n.serve(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

func (n *Nginx) serve(ctx context.Context) error {
	for _, part := range []string{sitePort, siteFiles, siteUsers} {
		if !strings.Contains(n.site.Server, part) {
			return fmt.Errorf("the site's configuration of nginx does not hold %s", part)
		}
	}
	var err error
	if n.address, err = process.FreeAddress(); err != nil {
		return err
	}
	here := strings.NewReplacer(sitePort, n.address, siteFiles, n.path("www"), siteUsers, n.path("users", "htpasswd"))
	folders := []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"}
	var temporary strings.Builder
	for _, folder := range folders {
		fmt.Fprintf(&temporary, "  %s_temp_path %s;\n", folder, n.path(folder))
	}
	if err := errors.Join(
		n.write("www/index.html", "in\n"),
		n.write("compose.sh", n.site.Compose),
		n.write("users/htpasswd", ""),
		n.write("site.conf", here.Replace(n.site.Server)),
		n.write("nginx.conf", "daemon off;\npid "+n.path("pid")+";\nerror_log stderr warn;\nevents {}\nhttp {\n  access_log off;\n"+
			temporary.String()+"  include "+n.path("site.conf")+";\n}\n"),
	); err != nil {
		return err
	}
	return n.start(ctx, process.Options{
		Name: "nginx", Path: n.program, Arguments: []string{"-e", "stderr", "-p", n.path(), "-c", n.path("nginx.conf")},
		Ready: func(ctx context.Context) error {
			if err := n.Login(ctx, "nobody", "nothing"); !errors.Is(err, ErrRefused) {
				return fmt.Errorf("nginx refused nobody: %w", err)
			}
			return nil
		},
	})
}

// Version is what nginx calls itself.
func (n *Nginx) Version(ctx context.Context) (string, error) {
	said, err := exec.CommandContext(ctx, n.program, "-v").CombinedOutput()
	_, version, found := strings.Cut(strings.TrimSpace(string(said)), "nginx version: nginx/")
	if err == nil && !found {
		err = errors.New("nginx does not say its version")
	}
	return version, err
}

// Apply mounts an account Secret as kubelet does, a file for each key, and composes the file of passwords.
func (n *Nginx) Apply(ctx context.Context, username, stored string) error {
	files := maps.Clone(n.mounted)
	files[username+"/username"], files[username+"/password"] = username, stored
	return n.Mount(ctx, files)
}

// Mount mounts these files, by their paths, and no others, and composes the file of passwords.
func (n *Nginx) Mount(ctx context.Context, files map[string]string) error {
	if err := os.RemoveAll(n.path("accounts")); err != nil {
		return err
	}
	if err := n.makeFolder(n.path("accounts")); err != nil {
		return err
	}
	for path, content := range files {
		if err := n.write(filepath.Join("accounts", path), content); err != nil {
			return err
		}
	}
	n.mounted = files
	return n.compose(ctx)
}

func (n *Nginx) compose(ctx context.Context) error {
	compose := exec.CommandContext(ctx, "sh", n.path("compose.sh"), n.path("accounts"), n.path("users", "htpasswd"))
	compose.SysProcAttr = &syscall.SysProcAttr{Credential: n.owner}
	compose.Dir = n.path()
	if output, err := compose.CombinedOutput(); err != nil {
		return fmt.Errorf("composing the file of passwords: %w: %s", err, output)
	}
	return n.own(n.path("users", "htpasswd"))
}

// Login asks for the site's first page; nginx reads the file of passwords for each request.
func (n *Nginx) Login(ctx context.Context, username, password string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.address+"/", nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth(username, password)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized:
		return fmt.Errorf("%w: nginx answers 401", ErrRefused)
	}
	return fmt.Errorf("nginx answers %s", response.Status)
}
