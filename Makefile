# mintlog: "make" alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help build tools test lint generate bench demo sandbox sandbox-down

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build mintlog and kubectl-credentials into bin/
	@mkdir -p bin
	go build -buildvcs=false -o bin/ ./cmd/mintlog ./cmd/kubectl-credentials

tools: ## build the servers of the sandbox into bin/, once (several minutes the first time)
	@./test/tools/build.sh

test: build tools ## run every test, the end-to-end ones on real servers
	go test -timeout 20m -p 2 ./...
	go -C cmd/fluentbit test -timeout 20m ./...

lint: ## go vet, staticcheck, gofmt
	go vet ./...
	go -C cmd/fluentbit vet ./...
	go -C deploy/dashboards/generator vet ./...
	@echo staticcheck ./...
	@staticcheck=$$(go -C test/tools/staticcheck tool -n staticcheck) && $$staticcheck ./... && (cd cmd/fluentbit && $$staticcheck ./...) && cd deploy/dashboards/generator && $$staticcheck ./...
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted"; exit 1; fi

generate: ## write what is generated anew: of the API types, and the dashboards
	./mint/api/generate.sh
	go -C deploy/dashboards/generator run . ../mintlog

bench: build tools ## measure, and print one table
	go run ./test/bench

demo: build tools ## watch the main job on real servers
	go run ./test/demo

sandbox: build tools ## start the same servers and mintlog, and leave them running (.sandbox/env)
	@go run ./test/sandbox/up

sandbox-down: ## stop what "make sandbox" started
	@go run ./test/sandbox/up --down
