package webhook

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// A framingError says where a body stops being a list of items. It never quotes the body.
type framingError struct {
	offset int64
	want   string
}

func (e *framingError) Error() string {
	return fmt.Sprintf("byte %d of the body: %s", e.offset, e.want)
}

// items reads the elements of the "items" of an EventList one by one, out of a body that is never held as a whole.
//
// It looks at brackets and strings only. What is wrong within an element, a raw control character or a bad escape, is
// left to whoever decodes that element, so that it spoils no other.
type items struct {
	body    *bufio.Reader
	maxItem int // bytes kept of an element

	offset int64  // of the next byte
	item   []byte // of the element being read; reused
	length int64  // of the element being read
	open   []byte // closing brackets that are due
}

const (
	readBuffer = 32 << 10
	maxDepth   = 10_000 // as encoding/json has it
	itemsKey   = "items"
)

func newItems(body io.Reader, maxItem int) *items {
	return &items{body: bufio.NewReaderSize(body, readBuffer), maxItem: maxItem}
}

// each calls found with every element, and with its length, which is more than len(item) if the element was too long to
// be kept whole. The element is valid during the call only. The first error of found or of the body ends it; a body
// that is no list gives a framingError, after all elements before that place.
func (s *items) each(found func(item []byte, length int64) error) error {
	if err := s.expect('{', "no JSON object"); err != nil {
		return err
	}
	seen := false
	err := s.list('}', func(first byte) error {
		key, err := s.key(first)
		if err != nil {
			return err
		}
		first, err = s.token()
		if err != nil {
			return err
		}
		if key != itemsKey || first != '[' {
			return s.value(first, 0)
		}
		seen = true
		return s.list(']', func(first byte) error {
			if err := s.value(first, s.maxItem); err != nil {
				return err
			}
			return found(s.item, s.length)
		})
	})
	if err != nil {
		return err
	}
	if !seen {
		return s.wrong("a list without items")
	}
	return s.end()
}

// rest is what was read of the element at which reading stopped, and up to limit bytes that follow it.
func (s *items) rest(limit int64) []byte {
	following, _ := io.ReadAll(io.LimitReader(s.body, limit)) // how it ends does not matter any more
	return append(s.item, following...)
}

// list reads what stands between brackets: elements, of which one is called with the first byte, and commas.
func (s *items) list(end byte, one func(first byte) error) error {
	for first := true; ; first = false {
		s.item = s.item[:0]
		b, err := s.token()
		if err != nil {
			return err
		}
		if b == end && first {
			return nil
		}
		if err := one(b); err != nil {
			return err
		}
		s.item = s.item[:0]
		if b, err = s.token(); err != nil {
			return err
		}
		if b == end {
			return nil
		}
		if b != ',' {
			return s.wrong("no comma between two elements")
		}
	}
}

// key reads a member's name and the colon behind it.
func (s *items) key(first byte) (string, error) {
	if first != '"' {
		return "", s.wrong("no name of a member")
	}
	if err := s.value(first, len(itemsKey)+3); err != nil { // enough to tell it from a longer one
		return "", err
	}
	key := string(s.item)
	s.item = s.item[:0]
	if err := s.expect(':', "no colon behind a name"); err != nil {
		return "", err
	}
	return key[1 : len(key)-1], nil
}

// value reads a value that begins with first, and keeps as many as keep bytes of it.
func (s *items) value(first byte, keep int) error {
	s.item, s.length, s.open = s.item[:0], 0, s.open[:0]
	s.take(first, keep)
	switch first {
	case '"':
		return s.quoted(keep)
	case '{', '[':
		return s.nested(first, keep)
	case ',', ':', ']', '}':
		return s.wrong("no value")
	}
	return s.scalar(keep)
}

func (s *items) take(b byte, keep int) {
	s.length++
	if len(s.item) < keep {
		s.item = append(s.item, b)
	}
}

// quoted reads a string to its end.
func (s *items) quoted(keep int) error {
	for escaped := false; ; {
		b, err := s.next()
		if err != nil {
			return err
		}
		s.take(b, keep)
		switch {
		case escaped:
			escaped = false
		case b == '\\':
			escaped = true
		case b == '"':
			return nil
		}
	}
}

// nested reads an object or an array to its end.
func (s *items) nested(first byte, keep int) error {
	s.open = append(s.open, closing(first))
	for len(s.open) > 0 {
		b, err := s.next()
		if err != nil {
			return err
		}
		s.take(b, keep)
		switch b {
		case '"':
			if err := s.quoted(keep); err != nil {
				return err
			}
		case '{', '[':
			if len(s.open) == maxDepth {
				return s.wrong("nested too deeply")
			}
			s.open = append(s.open, closing(b))
		case '}', ']':
			if s.open[len(s.open)-1] != b {
				return s.wrong("brackets that do not match")
			}
			s.open = s.open[:len(s.open)-1]
		}
	}
	return nil
}

func closing(b byte) byte {
	if b == '{' {
		return '}'
	}
	return ']'
}

// scalar reads a number or a word to its end.
func (s *items) scalar(keep int) error {
	for {
		b, err := s.next()
		if err != nil {
			return err
		}
		switch b {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			s.offset--
			return s.body.UnreadByte()
		}
		s.take(b, keep)
	}
}

// next is the next byte. A body that ends before its list does is no list.
func (s *items) next() (byte, error) {
	b, err := s.body.ReadByte()
	if errors.Is(err, io.EOF) {
		return 0, &framingError{s.offset, "the body ends too early"}
	}
	if err != nil {
		return 0, err
	}
	s.offset++
	return b, nil
}

// token is the next byte that is no white space.
func (s *items) token() (byte, error) {
	for {
		b, err := s.next()
		if err != nil || !space(b) {
			return b, err
		}
	}
}

func space(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }

func (s *items) expect(want byte, otherwise string) error {
	b, err := s.token()
	if err == nil && b != want {
		s.item = append(s.item[:0], b)
		return s.wrong(otherwise)
	}
	return err
}

// end reads what may stand behind the list: nothing.
func (s *items) end() error {
	for {
		b, err := s.body.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.offset++
		if !space(b) {
			s.item = append(s.item[:0], b)
			return s.wrong("something stands behind the list")
		}
	}
}

// wrong is about the byte that was read last.
func (s *items) wrong(what string) error { return &framingError{s.offset - 1, what} }
