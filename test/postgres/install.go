package postgres

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mintlog/mintlog/test/debian"
)

// find is the folder of PostgreSQL's programs.
func find(ctx context.Context, progress io.Writer) (string, error) {
	if programs := installed(); programs != "" {
		return programs, nil
	}
	if debian.Installs() {
		allow, err := forbidServer(clusterSettings)
		if err != nil {
			return "", fmt.Errorf("keeping Debian from starting a PostgreSQL of its own: %w", err)
		}
		defer allow()
	}
	if err := debian.Need(ctx, progress, "postgresql", func() bool { return installed() != "" }); err != nil {
		return "", fmt.Errorf("PostgreSQL (looked for in PATH and in /usr/lib/postgresql/*/bin): %w", err)
	}
	return installed(), nil
}

// clusterSettings is where Debian's package looks for settings of the server that it sets up.
const clusterSettings = "/etc/postgresql-common/createcluster.d"

// forbidServer keeps Debian's package, while it is being installed, from setting up a server of its own at port 5432
// that would run on after us. The returned function takes that back.
func forbidServer(folder string) (allow func(), err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "mintlog-tests.conf")
	if err := os.WriteFile(file, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(file)
		_ = os.Remove(folder) // if it is empty
	}, nil
}

// installed is the folder of the newest PostgreSQL that is whole, or empty.
func installed() string {
	folders := filepath.SplitList(os.Getenv("PATH"))
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed: no error
	slices.SortFunc(packaged, func(a, b string) int { return release(b) - release(a) })
	for _, folder := range append(folders, packaged...) {
		if whole(folder) {
			return folder
		}
	}
	return ""
}

func release(folder string) int {
	number, err := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
	if err != nil {
		return 0
	}
	return number
}

func whole(folder string) bool {
	for _, program := range []string{"initdb", "postgres", "psql"} {
		if _, err := exec.LookPath(filepath.Join(folder, program)); err != nil {
			return false
		}
	}
	return true
}
