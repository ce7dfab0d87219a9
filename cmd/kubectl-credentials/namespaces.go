package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"

	"github.com/mintlog/mintlog/cmd/printable"
)

const (
	atOnce        = 8               // namespaces that are asked at the same time
	progressEvery = 2 * time.Second // of a list of many
	namedSkipped  = 10              // namespaces named among those passed over
)

// namespacePaths list what namespaces there are: Kubernetes' own list, which tenants rarely may read, and Cozystack's of
// those in which the caller is somebody.
var namespacePaths = []string{"/api/v1/namespaces", "/apis/core.cozystack.io/v1alpha1/tenantnamespaces"}

// namespaces are the namespaces that the caller may see, in order.
func (c *client) namespaces(ctx context.Context) ([]string, error) {
	var refused error
	for _, path := range namespacePaths {
		request := c.rest.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).MaxRetries(readRetries)
		body, err := c.answer(ctx, request, call{})
		if apierrors.IsForbidden(err) || refused != nil && apierrors.IsNotFound(err) {
			refused = errors.Join(refused, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		all, err := names(body)
		if err != nil {
			return nil, other("", "%w", err)
		}
		slices.Sort(all)
		return all, nil
	}
	return nil, &failure{
		err: errors.New("you may not list namespaces, so that nobody can say which ones you mean"), code: exitRefused,
		hint: "Name each of yours: kubectl credentials list -n NAMESPACE",
	}
}

// listAll lists every namespace that the caller may see. Those in which it may not list credentials, and those that are
// not enrolled, are passed over and told of.
func (c *client) listAll(ctx context.Context, t terminal, selector, accept string) ([]page, error) {
	namespaces, err := c.namespaces(ctx)
	if err != nil {
		return nil, err
	}
	pages := make([]page, len(namespaces))
	refusals := make([]error, len(namespaces))
	var done atomic.Int64
	defer tellProgress(t, &done, len(namespaces))()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, n := range namespaces {
		group.Go(func() error {
			defer done.Add(1)
			body, err := c.list(ctx, n, selector, accept)
			if apierrors.IsForbidden(err) {
				refusals[i] = err
				return nil
			}
			pages[i] = page{n, body}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	tellSkipped(t, namespaces, refusals)
	return slices.DeleteFunc(pages, func(p page) bool { return p.body == nil }), nil
}

// tellProgress says now and then how far a list of many is, until the returned function is called.
func tellProgress(t terminal, done *atomic.Int64, of int) (stop func()) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(t.err, "%d of %d namespaces read\n", done.Load(), of)
			case <-stopped:
				return
			}
		}
	}()
	return func() { close(stopped); <-ended }
}

func tellSkipped(t terminal, namespaces []string, refusals []error) {
	var forbidden, strangers []string
	for i, err := range refusals {
		switch {
		case err == nil:
		case isNotEnrolled(err):
			strangers = append(strangers, namespaces[i])
		default:
			forbidden = append(forbidden, namespaces[i])
		}
	}
	tell := func(why string, skipped []string) {
		if len(skipped) == 0 {
			return
		}
		shown := make([]string, 0, namedSkipped)
		for _, n := range skipped[:min(len(skipped), namedSkipped)] {
			shown = append(shown, printable.Name(n))
		}
		more := ""
		if hidden := len(skipped) - len(shown); hidden > 0 {
			more = fmt.Sprintf(" and %d more", hidden)
		}
		fmt.Fprintf(t.err, "Passed over, %s: %s%s.\n", why, strings.Join(shown, ", "), more)
	}
	tell("not enrolled", strangers)
	tell("where you may not list credentials", forbidden)
}

// names are the names of a list's objects.
func names(body []byte) ([]string, error) {
	var list struct {
		Items []metav1.PartialObjectMetadata `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(body, &list); err != nil {
		return nil, fmt.Errorf("decoding a list: %w", err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names, nil
}
