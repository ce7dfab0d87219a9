package ingest

import (
	"bytes"
	"encoding/binary"

	"github.com/mintlog/mintlog/store/event"
)

// A line is looked at closer if it holds one of these. kube-apiserver writes the group and the ending of a Secret's
// name as they are; another writer may escape letters and dots, so a line with such an escape is looked at as well.
var (
	group       = []byte(event.Group)
	secretEnd   = []byte(event.AccountSecretSuffix + `"`)
	escapeStart = []byte(`\u00`)
)

// couldBeOurs reports whether the event in line can be ours. It never says no to one that is.
func couldBeOurs(line []byte) bool {
	return indexOurs(line) < len(line) || indexEscape(line) < len(line)
}

// eachCandidate calls found with every line of block, which ends in a line break, that could be ours, and with where in
// block it begins. It searches the block as a whole: going line by line would cost as much as the search itself.
func eachCandidate(block []byte, found func(line []byte, at int)) {
	ours, escape := indexOurs(block), indexEscape(block)
	for {
		hit := min(ours, escape)
		if hit >= len(block) {
			return
		}
		start := bytes.LastIndexByte(block[:hit], '\n') + 1
		end := hit + bytes.IndexByte(block[hit:], '\n')
		found(block[start:end], start)
		if ours < end {
			ours = end + indexOurs(block[end:])
		}
		if escape < end {
			escape = end + indexEscape(block[end:])
		}
	}
}

// Group and ending are searched for together, by samples: of every sampleStep bytes the first four. Whatever holds a run
// of sampleRun bytes holds one of these four whole, at one of sampleStep places in the run, wherever it lies. That takes
// half the time of searching for their rarest bytes one after the other.
const (
	sampleStep = 6
	sampleRun  = sampleStep + 3
	// stride is of the samples that are looked at together, so that a branch is taken seldom.
	stride = 8 * sampleStep
)

// groupRun begins the run of the group whose parts are rarest in audit logs.
const groupRun = len(event.Group) - sampleRun

// A sample is four bytes of a needle, and where in it they stand.
type sample struct {
	four   uint32
	needle []byte
	offset int
}

// sampled holds all samples by sampleHash.
var sampled = func() (table [1 << 10]sample) {
	add := func(needle []byte, run int) {
		for at := run; at < run+sampleStep; at++ {
			s := sample{four: binary.LittleEndian.Uint32(needle[at:]), needle: needle, offset: at}
			if table[sampleHash(s.four)].needle != nil {
				panic("two samples share a place: sampleHash needs another multiplier")
			}
			table[sampleHash(s.four)] = s
		}
	}
	add(group, groupRun)
	add(secretEnd, 0)
	return table
}()

// fours are those of sampled, close together.
var fours = func() (table [1 << 10]uint32) {
	for i := range sampled {
		table[i] = sampled[i].four
	}
	return table
}()

func sampleHash(four uint32) uint32 { return four * 0xC2B2AE35 >> 22 }

func isSample(b []byte) bool {
	four := binary.LittleEndian.Uint32(b)
	return fours[sampleHash(four)] == four
}

// indexOurs is where the group or the ending of an account Secret's name first stands in b, len(b) if nowhere. As no
// end of the one begins the other, their samples come in their own order.
func indexOurs(b []byte) int {
	at := 0
	for ; at+stride <= len(b); at += stride {
		w := (*[stride]byte)(b[at:])
		if !isSample(w[0:]) && !isSample(w[sampleStep:]) && !isSample(w[2*sampleStep:]) && !isSample(w[3*sampleStep:]) &&
			!isSample(w[4*sampleStep:]) && !isSample(w[5*sampleStep:]) && !isSample(w[6*sampleStep:]) && !isSample(w[7*sampleStep:]) {
			continue
		}
		if found := indexSampled(b, at, at+stride); found >= 0 {
			return found
		}
	}
	if found := indexSampled(b, at, len(b)-3); found >= 0 {
		return found
	}
	return len(b)
}

// indexSampled is where the first of the needles stands that has a sample between from and end, -1 if none has.
func indexSampled(b []byte, from, end int) int {
	for ; from < end; from += sampleStep {
		four := binary.LittleEndian.Uint32(b[from:])
		s := &sampled[sampleHash(four)]
		if start := from - s.offset; s.four == four && s.needle != nil && start >= 0 && bytes.HasPrefix(b[start:], s.needle) {
			return start
		}
	}
	return -1
}

// indexEscape finds an escaped lower-case letter or dot, len(b) if there is none.
func indexEscape(b []byte) int {
	for at := 0; ; {
		i := bytes.Index(b[at:], escapeStart)
		if i < 0 {
			return len(b)
		}
		at += i
		rest := b[at+len(escapeStart):]
		letter := len(rest) > 0 && (rest[0] == '6' || rest[0] == '7')
		dot := len(rest) > 1 && rest[0] == '2' && (rest[1] == 'e' || rest[1] == 'E')
		if letter || dot {
			return at
		}
		at += len(escapeStart)
	}
}
