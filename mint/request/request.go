// Package request carries, in a request's context, what the API server's guard has checked of the raw request and what
// the storage behind it records.
package request

import (
	"context"
	"time"
)

type key struct{}

type origin struct {
	auditID  string
	received time.Time
}

// With returns a context that carries the audit id under which kube-apiserver records the request, as it stood in its
// header, and the time at which the server received the request.
func With(ctx context.Context, auditID string, received time.Time) context.Context {
	return context.WithValue(ctx, key{}, origin{auditID: auditID, received: received})
}

// AuditID is the audit id under which kube-apiserver records the request, and false for a request that brought none: a
// read, or one that did not pass the guard.
func AuditID(ctx context.Context) (string, bool) {
	o, _ := ctx.Value(key{}).(origin)
	return o.auditID, o.auditID != ""
}

// Received is when the server received the request, the zero time for one that did not pass the guard.
func Received(ctx context.Context) time.Time {
	o, _ := ctx.Value(key{}).(origin)
	return o.received
}
