package main

import "context"

func (b *bencher) applications(ctx context.Context) ([]figure, error) { return nil, nil }
