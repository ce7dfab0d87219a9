package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checkAddress wants host:port, or :port for all addresses.
func checkAddress(flag, value string) error {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s %q: it is an address like :9404 or 127.0.0.1:9404", flag, value)
	}
	return nil
}

// checkHost wants an IP address or a name that may resolve to one.
func checkHost(flag, value string) error {
	if net.ParseIP(value) == nil && len(validation.IsDNS1123Subdomain(value)) > 0 {
		return fmt.Errorf("%s %q: it is an IP address of this machine, like 0.0.0.0", flag, value)
	}
	return nil
}

// checkNamespace wants what a namespace can be called.
func checkNamespace(flag, value string) error {
	if len(validation.IsDNS1123Label(value)) > 0 {
		return fmt.Errorf("%s %q: it is the name of a namespace", flag, value)
	}
	return nil
}

// checkObject wants what a ServiceAccount can be called.
func checkObject(flag, value string) error {
	if len(validation.IsDNS1123Subdomain(value)) > 0 {
		return fmt.Errorf("%s %q: it is the name of a ServiceAccount", flag, value)
	}
	return nil
}

// checkNATS wants one URL, or several with commas between them. Its error shows none: they may hold a password.
func checkNATS(flag, value string) error {
	for one := range strings.SplitSeq(value, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return fmt.Errorf("%s: it is a URL like nats://nats:4222, or several with commas between them", flag)
		}
	}
	return nil
}

// checkFile wants a file that can be read, or none.
func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	defer file.Close()
	if is, err := file.Stat(); err != nil || is.IsDir() {
		return fmt.Errorf("%s %s: it is a file", flag, path)
	}
	return nil
}

// checkFolder wants a directory, or the name of one that can be made.
func checkFolder(flag, path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		is, err := os.Stat(at)
		if err == nil && !is.IsDir() || errors.Is(err, syscall.ENOTDIR) {
			return fmt.Errorf("%s %s: it is a directory", flag, path)
		}
		if err == nil || at == filepath.Dir(at) {
			return nil
		}
	}
}

// checkEach wants a text in every place of a list.
func checkEach(flag string, values []string) error {
	if slices.Contains(values, "") {
		return errors.New(flag + ": an empty one is among them")
	}
	return nil
}
