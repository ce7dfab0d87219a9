#!/bin/sh
# Generates what follows from the types in v1alpha1: deep copies, and the OpenAPI definitions with the names of their
# models. The generators are pinned in test/tools/codegen.
#
#   generate.sh          writes the generated files
#   generate.sh --check  writes nothing, and fails if a generated file is not what it would write
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
module=github.com/mintlog/mintlog
types=$module/mint/api/v1alpha1
meta=k8s.io/apimachinery/pkg/apis/meta/v1
runtime=k8s.io/apimachinery/pkg/runtime
version=k8s.io/apimachinery/pkg/version
generated="v1alpha1/zz_generated.deepcopy.go v1alpha1/zz_generated.model_name.go openapi/zz_generated.openapi.go"

# The generators write beside their input: give them a copy, so that a check touches nothing.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copy=$scratch/module
mkdir -p "$scratch/bin" "$copy/mint/api/v1alpha1"
: >"$scratch/header"
cp "$root/go.mod" "$root/go.sum" "$copy/"
for source in "$here"/v1alpha1/*.go; do
	case $source in
	*/zz_generated.* | *_test.go) ;;
	*) cp "$source" "$copy/mint/api/v1alpha1/" ;;
	esac
done

(cd "$root/test/tools/codegen" &&
	go build -o "$scratch/bin/" k8s.io/code-generator/cmd/deepcopy-gen k8s.io/kube-openapi/cmd/openapi-gen)

cd "$copy"
"$scratch/bin/deepcopy-gen" --go-header-file "$scratch/header" --output-file zz_generated.deepcopy.go "$types"
# A dependency that is not read-only would get a file written into the module cache.
"$scratch/bin/openapi-gen" --go-header-file "$scratch/header" \
	--output-dir "$copy/mint/api/openapi" --output-pkg "$module/mint/api/openapi" \
	--output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go \
	--report-filename "$scratch/violations" \
	--readonly-pkg "$meta" --readonly-pkg "$runtime" --readonly-pkg "$version" \
	"$meta" "$runtime" "$version" "$types"
(cd mint/api && gofmt -w $generated)

if grep "$module" "$scratch/violations" >&2; then
	echo "mint/api/generate.sh: these fields break the rules of Kubernetes APIs" >&2
	exit 1
fi

for file in $generated; do
	if [ "${1:-}" = --check ]; then
		cmp -s "$copy/mint/api/$file" "$here/$file" || { echo "mint/api/$file is stale: run make generate" >&2; exit 1; }
	elif ! cmp -s "$copy/mint/api/$file" "$here/$file"; then
		mkdir -p "$here/$(dirname "$file")"
		cp "$copy/mint/api/$file" "$here/$file"
	fi
done
