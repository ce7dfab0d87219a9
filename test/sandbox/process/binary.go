package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Root finds this module's folder, from the current one upwards.
func Root() (string, error) {
	directory, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if isRoot(filepath.Join(directory, "go.mod")) {
			return directory, nil
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			return "", errors.New("the sandbox runs from within mintlog's source folder, and this is not it")
		}
		directory = parent
	}
}

func isRoot(file string) bool {
	module, err := os.Open(file)
	if err != nil {
		return false
	}
	defer module.Close()
	lines := bufio.NewScanner(module)
	for lines.Scan() {
		if lines.Text() == "module github.com/mintlog/mintlog" {
			return true
		}
	}
	return false
}

// Binary is the path of a server's binary in bin/ of this module.
func Binary(name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is missing: run \"make tools\"", path)
	}
	return path, nil
}
