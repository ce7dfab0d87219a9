package abi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/cmd/fluentbit/instance"
	"github.com/mintlog/mintlog/ingest"
)

// A section of a configuration in Fluent Bit's classic form. Keys are in lower case.
type section struct {
	kind string
	keys map[string]string
}

func sections(t *testing.T, name string) []section {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "fluentbit", name))
	require.NoError(t, err)
	var all []section
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			all = append(all, section{strings.Trim(line, "[]"), map[string]string{}})
		default:
			key, value, _ := strings.Cut(line, " ")
			all[len(all)-1].keys[strings.ToLower(key)] = strings.TrimSpace(value)
		}
	}
	return all
}

// one is the only section of the kind that has this name.
func one(t *testing.T, all []section, kind, name string) map[string]string {
	t.Helper()
	var found []map[string]string
	for _, s := range all {
		if s.kind == kind && s.keys["name"] == name {
			found = append(found, s.keys)
		}
	}
	require.Len(t, found, 1, "%s %s", kind, name)
	return found[0]
}

func TestTheShippedConfigurationLosesNothingThatItNeedNot(t *testing.T) {
	all := sections(t, "fluent-bit.conf")
	require.Equal(t, "SERVICE", all[0].kind)
	service, tail := all[0].keys, one(t, all, "INPUT", "tail")
	assert.NotEmpty(t, service["storage.path"])
	assert.Equal(t, "Off", service["daemon"], "a Go library does not survive a fork")
	assert.Equal(t, "filesystem", tail["storage.type"])
	assert.NotEmpty(t, tail["db"])
	assert.Equal(t, "On", tail["read_from_head"])
	assert.Equal(t, "On", tail["skip_long_lines"], "without it a long line ends the reading of its file")
	assert.Equal(t, "8M", tail["buffer_max_size"])
	assert.Equal(t, 8<<20, ingest.DefaultMaxLine)

	output := one(t, all, "OUTPUT", "mintlog")
	assert.Equal(t, "no_limits", output["retry_limit"], "by default a chunk is dropped at its second failure")
	assert.Equal(t, output["tag_prefix"]+"*", output["match"])
	assert.True(t, strings.HasPrefix(tail["tag"], output["tag_prefix"]))
	assert.Equal(t, output["match"], one(t, all, "OUTPUT", "http")["match"])

	parser := one(t, sections(t, "parsers.conf"), "PARSER", tail["parser"])
	assert.Equal(t, "On", parser["time_keep"])
	assert.Contains(t, parser["time_format"], "%L", "without it the record's time has seconds only")
}

func TestTheShippedOutputHasOnlyKeysThatSomebodyReads(t *testing.T) {
	output := one(t, sections(t, "fluent-bit.conf"), "OUTPUT", "mintlog")
	output["address"], output["credentials_file"], output["node"] = "nats://127.0.0.1:4222", "", "node-1"
	read := map[string]bool{"name": true, "match": true, "retry_limit": true, "workers": true} // by the engine
	c, err := instance.Configure(func(key string) string {
		read[key] = true
		return output[key]
	})
	require.NoError(t, err)
	assert.Equal(t, output["tag_prefix"], c.TagPrefix)
	assert.Equal(t, output["timeout"], c.Timeout.String())
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "fluentbit", "README.md"))
	require.NoError(t, err)
	for key := range output {
		assert.True(t, read[key], "nobody reads %s", key)
	}
	for key := range read {
		if key != "name" && key != "match" && key != "retry_limit" && key != "workers" {
			assert.Contains(t, string(readme), "| `"+key+"` |", "the README does not tell of it")
		}
	}
}
