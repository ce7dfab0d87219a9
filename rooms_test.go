package mintlog_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/mintlog/mintlog/"

// forbidden are the imports that no package of a room may have, directly or through others.
var forbidden = map[string][]string{
	"mint":      {module + "ingest", module + "projector", module + "cmd"},
	"ingest":    {module + "mint", module + "projector", module + "cmd", "k8s.io/"},
	"projector": {module + "mint", module + "ingest", module + "cmd"},
	"store":     {module + "mint", module + "ingest", module + "projector", module + "cmd", "k8s.io/", "sigs.k8s.io/"},
}

// typesOnly may import apimachinery, and no server or client: the kubectl plugin is built from it.
const typesOnly = "mint/api/v1alpha1"

type listed struct {
	ImportPath string
	Deps       []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	readSources(t)
	out, err := exec.Command("go", "list", "-json=ImportPath,Deps", "./...").Output()
	require.NoError(t, err)
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// readSources has go test see what "go list" reads, so that a result is not taken from its cache when an import came.
func readSources(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	}))
}

func TestTheRoomsDoNotImportEachOther(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		room, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, module), "/")
		seen[room] = true
		for _, dependency := range p.Deps {
			for _, prefix := range forbidden[room] {
				assert.False(t, strings.HasPrefix(dependency, prefix), "%s must not import %s", p.ImportPath, dependency)
			}
		}
	}
	for room := range forbidden {
		assert.True(t, seen[room], "no package in room %s: is the module named otherwise?", room)
	}
}

func TestTheAPITypesNeedNoServerAndNoClient(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+typesOnly {
			continue
		}
		for _, dependency := range p.Deps {
			assert.False(t, strings.HasPrefix(dependency, "k8s.io/apiserver") || strings.HasPrefix(dependency, "k8s.io/client-go"),
				"%s must not import %s", p.ImportPath, dependency)
		}
		return
	}
	t.Fatal("no package " + typesOnly)
}
