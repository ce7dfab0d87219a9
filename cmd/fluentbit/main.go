// The Fluent Bit output plugin "mintlog": it publishes the requests for credentials, and the writes of account Secrets,
// out of a kube-apiserver's audit log that a Fluent Bit reads. deploy/fluentbit says how to build and to use it.
//
// Fluent Bit loads it as a shared library and calls what is exported here. Of github.com/fluent/fluent-bit-go it uses
// the registration, the properties and the contexts, not the decoder, which cannot tell a chunk's end from a record that
// it cannot read.
package main

// #include <stddef.h>
import "C"

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"unsafe"

	"github.com/fluent/fluent-bit-go/output"

	"github.com/mintlog/mintlog/cmd/fluentbit/instance"
)

// Fluent Bit captures standard error with its own log.
var log = slog.New(slog.NewTextHandler(os.Stderr, nil))

// FLBPluginRegister tells Fluent Bit what this is.
//
//export FLBPluginRegister
func FLBPluginRegister(definition unsafe.Pointer) C.int {
	return C.int(output.FLBPluginRegister(definition, "mintlog", "publishes mints and revokes of an audit log to the stream"))
}

// FLBPluginUnregister frees what FLBPluginRegister has made.
//
//export FLBPluginUnregister
func FLBPluginUnregister(definition unsafe.Pointer) { output.FLBPluginUnregister(definition) }

// FLBPluginInit makes the instance of one output section. An error keeps Fluent Bit from starting: it is always one of
// the configuration.
//
//export FLBPluginInit
func FLBPluginInit(plugin unsafe.Pointer) (status C.int) {
	defer survive("initialise", &status, output.FLB_ERROR)
	c, err := instance.Configure(func(key string) string { return output.FLBPluginConfigKey(plugin, key) })
	if err != nil {
		log.Error("The output mintlog is not configured as it has to be", "error", err)
		return output.FLB_ERROR
	}
	i, err := instance.Open(c, log)
	if err != nil {
		log.Error("The output mintlog does not start", "error", err)
		return output.FLB_ERROR
	}
	output.FLBPluginSetContext(plugin, i)
	return output.FLB_OK
}

// FLBPluginFlushCtx takes a chunk. It never answers FLB_ERROR, upon which Fluent Bit drops the chunk.
//
//export FLBPluginFlushCtx
func FLBPluginFlushCtx(context, data unsafe.Pointer, length C.size_t, tag *C.char) (status C.int) {
	defer survive("flush", &status, output.FLB_RETRY)
	i, ok := output.FLBPluginGetContext(context).(*instance.Instance)
	if !ok {
		log.Error("A chunk came for an output that does not exist")
		return output.FLB_RETRY
	}
	if err := i.Flush(C.GoString(tag), unsafe.Slice((*byte)(data), int(length))); err != nil {
		return output.FLB_RETRY // it is logged where it is known whether it was logged before
	}
	return output.FLB_OK
}

// FLBPluginExitCtx ends an instance when its flushes have ended. A chunk that comes later is handed back.
//
//export FLBPluginExitCtx
func FLBPluginExitCtx(context unsafe.Pointer) (status C.int) {
	defer survive("exit", &status, output.FLB_OK)
	if i, ok := output.FLBPluginGetContext(context).(*instance.Instance); ok {
		if err := i.Close(); err != nil {
			log.Error("The output mintlog did not end as it should", "error", err)
		}
	}
	return output.FLB_OK
}

// survive keeps a fault of ours from taking Fluent Bit with it. What the panic says could quote a record.
func survive(doing string, status *C.int, answer C.int) {
	if p := recover(); p != nil {
		log.Error("The output mintlog failed", "doing", doing, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		*status = answer
	}
}

func main() {}
