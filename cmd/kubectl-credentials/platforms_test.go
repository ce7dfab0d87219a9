package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

// Windows lacks what Linux has alone, and what macOS has as well. It is only checked for types, with all that the plugin
// imports: a compiler would take minutes.
func TestThePluginCanBeBuiltForSystemsOtherThanLinux(t *testing.T) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes,
		Env:  append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, ".")
	require.NoError(t, err)
	count := 0
	packages.Visit(loaded, nil, func(p *packages.Package) {
		count++
		assert.Empty(t, p.Errors, p.PkgPath)
	})
	assert.Greater(t, count, 300)
}
