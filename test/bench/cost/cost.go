// Package cost is what the processes that the benchmark starts say of themselves.
package cost

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// A Memory is what a Go process holds, in bytes.
type Memory struct {
	HeapAlloc uint64 // objects
	HeapInUse uint64 // spans that hold objects
	Resident  int64
}

// Now is this process's memory. With collect, what is no more needed has gone before.
func Now(collect bool) (Memory, error) {
	if collect {
		runtime.GC()
		runtime.GC() // what the first has put aside goes with the second
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	resident, err := Status(os.Getpid(), "VmRSS")
	return Memory{HeapAlloc: m.HeapAlloc, HeapInUse: m.HeapInuse, Resident: resident}, err
}

// Status is a size of a process from /proc/<pid>/status ("VmRSS", "VmHWM" for the most it ever was), in bytes.
func Status(pid int, field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name != field {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		return kilobytes << 10, err
	}
	return 0, fmt.Errorf("no %s of process %d", field, pid)
}

// CPU is the time that a process has used, in user and in system mode.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, behindName, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(behindName)
	const user, system = 11, 12 // counted from behind the name
	if len(fields) <= system {
		return 0, fmt.Errorf("no CPU time of process %d", pid)
	}
	var ticks int64
	for _, field := range fields[user : system+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ is 100 on every Linux that Go runs on
}

// A Tail is what reading one log came to.
type Tail struct {
	Events      int
	Wall        time.Duration
	HeapInUse   uint64 // bytes, the most seen
	Allocations uint64 // objects, by the reading alone
	Allocated   uint64 // bytes of them
}

// A Role is how far the accounts role has come.
type Role struct {
	Written int // objects
	Cached  int // account Secrets in its caches
}
