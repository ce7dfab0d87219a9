# The image of every part of mintlog: one static binary and CA certificates, no shell. It runs as user 65532 with nothing
# to write to but the volumes it is given.
#   docker build --tag mintlog .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY ingest ingest
COPY mint mint
COPY projector projector
COPY store store
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags="-s -w" -o /mintlog ./cmd/mintlog

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /mintlog /mintlog
COPY LICENSE /LICENSE
USER 65532:65532
ENTRYPOINT ["/mintlog"]
