// Package api generates, from the types in v1alpha1, their deep copies and the OpenAPI definitions in openapi.
package api

//go:generate ./generate.sh
