package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// fingerprintLength is how many bytes each end of a fingerprint covers. Audit lines begin alike for some hundred bytes:
// this reaches past an audit id, and the end past a line's times.
const fingerprintLength = 4 << 10

// A digest is that of some bytes of a file.
type digest struct {
	Length int    `json:"length"`
	SHA256 string `json:"sha256"`
}

func digestOf(b []byte) digest {
	sum := sha256.Sum256(b)
	return digest{Length: len(b), SHA256: hex.EncodeToString(sum[:])}
}

func (d digest) meets(b []byte) bool { return d == digestOf(b) }

// A trail is what a reader has seen of a file: its first bytes, and the last before offset.
type trail struct {
	head, tail []byte
	offset     int64
}

// follow takes the bytes that end at offset, which follow those before unless some were skipped.
func (t *trail) follow(consumed []byte, offset int64) {
	if t.offset+int64(len(consumed)) != offset {
		t.tail = t.tail[:0]
	} else if int64(len(t.head)) == t.offset {
		t.head = append(t.head, consumed[:min(len(consumed), fingerprintLength-len(t.head))]...)
	}
	if len(consumed) >= fingerprintLength {
		t.tail = append(t.tail[:0], consumed[len(consumed)-fingerprintLength:]...)
	} else {
		drop := max(0, len(t.tail)+len(consumed)-fingerprintLength)
		t.tail = append(t.tail[:copy(t.tail, t.tail[drop:])], consumed...)
	}
	t.offset = offset
}

// place is where the trail ends, in the file with the given id.
func (t *trail) place(id fileID) *place {
	return &place{ID: id, Offset: t.offset, Head: digestOf(t.head), Tail: digestOf(t.tail)}
}

// meet reads source, a file from its first byte, up to the place's offset, and reports whether it is the file in which
// the place was taken. If so the trail is what was taken there.
func meet(p place, source io.Reader) (*trail, bool, error) {
	if !p.possible() {
		return nil, false, nil
	}
	t := &trail{offset: p.Offset}
	t.head = make([]byte, p.Head.Length)
	if met, err := fill(source, t.head); !met || err != nil || !p.Head.meets(t.head) {
		return nil, false, err
	}
	// The tail may begin within the head.
	between := p.Offset - int64(p.Head.Length) - int64(p.Tail.Length)
	t.tail = make([]byte, p.Tail.Length)
	overlap := 0
	if between < 0 {
		overlap = int(-between)
		copy(t.tail, t.head[len(t.head)-overlap:])
	} else if met, err := skip(source, between); !met || err != nil {
		return nil, false, err
	}
	if met, err := fill(source, t.tail[overlap:]); !met || err != nil || !p.Tail.meets(t.tail) {
		return nil, false, err
	}
	return t, true, nil
}

// possible reports whether a trail can have led to the place, which may come from a damaged checkpoint.
func (p place) possible() bool {
	for _, d := range []digest{p.Head, p.Tail} {
		if d.Length < 0 || d.Length > fingerprintLength || int64(d.Length) > p.Offset {
			return false
		}
	}
	return true
}

// fill reports whether source has as many bytes as b.
func fill(source io.Reader, b []byte) (bool, error) {
	_, err := io.ReadFull(source, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return err == nil, err
}

func skip(source io.Reader, n int64) (bool, error) {
	if seeker, ok := source.(io.Seeker); ok {
		_, err := seeker.Seek(n, io.SeekCurrent)
		return err == nil, err
	}
	_, err := io.CopyN(io.Discard, source, n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return err == nil, err
}
