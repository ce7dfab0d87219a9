package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// resume takes up the log where the checkpoint has it.
func (f *follower) resume() error {
	s, known := f.tailer.checkpoints.get(f.path)
	if !known {
		f.fresh = true
		if !f.unknownSince.IsZero() {
			f.loss = &loss{reason: "the checkpoint was damaged, and files are gone since", from: f.unknownSince, unlessOlder: true}
		}
		return nil
	}
	f.seen = s.Time
	if s.Place == nil {
		f.read, f.coming = readOf(s), s.Coming
		return nil
	}
	found, err := f.locate(*s.Place)
	if err != nil {
		return err
	}
	f.read, f.coming = readOf(s), s.Coming
	switch {
	case found == nil && s.Done:
		f.done = s.Place
	case found == nil:
		f.gone("the file that was being read is gone", 0, "inode", s.Place.ID.Inode, "from", s.Place.Offset)
		f.fresh = true
	case s.Done && f.isRead(found):
		f.done, f.last = s.Place, found.rotated
		return found.close()
	default:
		f.take(found)
	}
	return nil
}

func readOf(s state) map[string]finished {
	if s.Read == nil {
		return map[string]finished{}
	}
	return maps.Clone(s.Read)
}

// isRead reports whether s is a rotated file that was read to its end.
func (f *follower) isRead(s *segment) bool {
	done, known := f.read[s.rotated]
	return known && (s.zipped || done.Inode == s.id.Inode)
}

// take makes s what is being read.
func (f *follower) take(s *segment) {
	f.tellOversized(s)
	f.current = s
	if f.loss != nil {
		f.loss.behind = 0
	}
	f.save()
}

func (f *follower) tellOversized(s *segment) {
	s.scanner.Oversized = func(offset, length int64, couldBeOurs bool) {
		f.drop(offset, length, oversized, nil)
		if couldBeOurs {
			f.unusable(offset, length, length, oversized)
		}
	}
}

// locate opens the file in which the place was taken. It is nil if there is none. One that is rotated or compressed just
// now has another path than it was listed with: what is not found is looked for again until the files stay as they are.
func (f *follower) locate(p place) (*segment, error) {
	list, err := files(f.path)
	for err == nil {
		var found *segment
		if found, err = locateIn(list, p); err != nil || found != nil {
			return found, err
		}
		before := list
		if list, err = files(f.path); err == nil && slices.EqualFunc(before, list, sibling.same) {
			return nil, nil
		}
	}
	return nil, err
}

// locateIn opens the file in which the place was taken: the one with its inode if that has the same contents, else one
// that has them, youngest first. It is nil if none of the list does.
func locateIn(list []sibling, p place) (*segment, error) {
	for _, sameInode := range []bool{true, false} {
		for _, s := range slices.Backward(list) {
			if sameInode != s.id.sameInode(p.ID) {
				continue
			}
			found, met, err := openSegment(s.path, &p, s.zipped())
			switch {
			case errors.Is(err, fs.ErrNotExist), isDamaged(err):
			case err != nil:
				return nil, err
			case met:
				found.rotated = s.name
				return found, nil
			}
		}
	}
	return nil, nil
}

// checkIntact reports whether the current file still has what was read from it. If not it is read anew.
func (f *follower) checkIntact() (bool, error) {
	intact, err := f.current.intact()
	if err != nil || intact {
		return intact, err
	}
	from, seen := f.current.scanner.Offset(), f.current.seen
	if seen > from {
		f.count(f.tailer.metrics.droppedBytes, seen-from, truncated)
	}
	f.gone("a file was truncated, with what was written to it since the last look", max(0, seen-from),
		"file", f.current.file.Name(), "from", from, "to", seen)
	f.close()
	f.done, f.fresh = nil, true
	return false, nil
}

// atEnd decides what the end of the current file means.
func (f *follower) atEnd(ctx context.Context) (bool, error) {
	if f.current.rotated != "" || f.current.replaced {
		return true, f.finish(ctx)
	}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // in the middle of a rotation, or deleted
	}
	if err != nil {
		return false, err
	}
	if os.SameFile(info, f.current.info) {
		return false, nil
	}
	f.current.replaced = true // what was written to it before the rotation is there now: read on to the end once more
	return true, nil
}

// finish ends the current file.
func (f *follower) finish(ctx context.Context) error {
	s := f.current
	before := s.scanner.Offset()
	read := finished{Inode: s.id.Inode, Offset: before, Size: before + s.scanner.Pending()}
	cutOff := s.cutOff() && !s.zipped
	f.current.finish(f.onLine)
	if cutOff && f.loss == nil {
		f.unusable(before, s.scanner.Offset()-before, s.scanner.Offset()-before, "the last line of a file is cut off")
	}
	f.noteRead(before)
	if !f.settle(ctx) {
		return ctx.Err()
	}
	f.save()
	if err := f.findName(); err != nil {
		return err
	}
	if err := f.look(); err != nil {
		return err
	}
	f.done, f.last = f.place(), s.rotated
	if s.rotated != "" {
		f.read[s.rotated] = read
	}
	f.close()
	f.save()
	return nil
}

// findName finds the name under which the current file lies, if it was compressed since it was opened.
func (f *follower) findName() error {
	if f.current.rotated != "" {
		return nil
	}
	list, err := siblings(f.path)
	if err != nil {
		return err
	}
	end := f.current.trail.place(f.current.id)
	for _, s := range list {
		if s.id.sameInode(f.current.id) {
			f.current.rotated = s.name
			return nil
		}
	}
	for _, s := range list {
		if _, known := f.read[s.name]; known || !s.zipped() {
			continue
		}
		zipped, met, err := openSegment(s.path, end, true)
		if err == nil && met {
			f.current.rotated = s.name
			return zipped.file.Close()
		}
	}
	return nil
}

func (f *follower) close() {
	if f.current != nil {
		_ = f.current.file.Close()
	}
	f.current = nil
}

// look sees which files there are, and keeps what comes after the one of the place: a file that is seen and then gone
// before it was read is lost.
func (f *follower) look() error {
	f.changed.Store(false)
	f.looked = time.Now()
	log, err := theLog(f.path) // before the others: what is older has its rotated name by then
	if err != nil {
		return err
	}
	rotated, err := siblings(f.path)
	if err != nil {
		return err
	}
	anchored := f.anchored(log, rotated)
	there := f.unread(log, rotated)
	if f.place() == nil && len(there) == 0 && f.loss == nil {
		f.seen = f.tailer.options.Now() // until now nothing was there
	}
	if f.fresh {
		f.fresh, f.coming, anchored = false, nil, true
	}
	f.expect(there, anchored)
	return nil
}

// anchored reports whether the file of the place is there. Rotated files go oldest first, so all that come after it are
// there as well then.
func (f *follower) anchored(log *sibling, rotated []sibling) bool {
	if f.current == nil {
		return slices.ContainsFunc(rotated, func(s sibling) bool {
			return s.name == f.last && (s.zipped() || s.id.Inode == f.read[s.name].Inode)
		})
	}
	if log != nil && log.id.sameInode(f.current.id) {
		return true
	}
	for _, s := range rotated {
		if s.id.sameInode(f.current.id) {
			f.current.rotated = s.name
			return true
		}
		if s.name == f.current.rotated && s.zipped() {
			return true
		}
	}
	return false
}

// unread are the files that are neither read nor being read, oldest first, the log last.
func (f *follower) unread(log *sibling, rotated []sibling) []sibling {
	names := map[string]bool{}
	f.late = f.late[:0]
	var list []sibling
	for _, s := range rotated {
		names[s.name] = true
		if log != nil && log.id.sameInode(s.id) {
			log = nil // it was rotated just now
		}
		if f.current != nil && (s.id.sameInode(f.current.id) || s.name == f.current.rotated && s.zipped()) {
			continue
		}
		done, known := f.read[s.name]
		switch {
		case !known:
			list = append(list, s)
		case s.zipped():
		case s.id.Inode != done.Inode: // two rotations in one millisecond
			s.replaces = true
			delete(f.read, s.name)
			list = append(list, s)
		case s.size > done.Size:
			f.late = append(f.late, s)
		}
	}
	maps.DeleteFunc(f.read, func(name string, _ finished) bool { return !names[name] })
	if log != nil && (f.current == nil || !log.id.sameInode(f.current.id)) {
		list = append(list, *log)
	}
	return list
}

// expect brings what comes up to date with the files that are there.
func (f *follower) expect(there []sibling, anchored bool) {
	known := slices.DeleteFunc(f.coming, func(c coming) bool {
		_, read := f.read[c.Name]
		return read || f.current != nil && c.Name != "" && c.Name == f.current.rotated || anchored && c == coming{Lost: true}
	})
	// Where nothing was known to come, and the file of the place is gone, one before the oldest may be gone as well.
	// One that is there without any rotated file is the next.
	uncertain := !anchored && len(known) == 0 && len(there) > 0 && there[0].name != ""
	f.coming = nil
	if uncertain {
		f.coming = append(f.coming, coming{Lost: true})
	}
	// Before a file that is still the log nothing can have come that was not there.
	rotated := slices.ContainsFunc(there, func(s sibling) bool {
		return s.name != "" && !slices.ContainsFunc(known, func(c coming) bool { return c.Name == s.name })
	})
	used := make([]bool, len(there))
	for _, c := range known {
		at := slices.IndexFunc(there, func(s sibling) bool { return c.is(s, anchored) && !(rotated && s.name == "") })
		if at >= 0 && !used[at] {
			used[at] = true
			next := f.comes(there[at])
			next.Replaced = next.Replaced || c.Replaced
			if c.Replaced && next.Zipped && !c.Zipped {
				f.coming = append(f.coming, coming{Name: c.Name, ID: c.ID, Lost: true})
			}
			f.coming = append(f.coming, next)
		} else if f.overlooked(c, there) {
			f.coming = append(f.coming, c)
		} else if c.Lost || !f.compressedMeanwhile(c, known, there, anchored) {
			f.coming = append(f.coming, coming{Name: c.Name, ID: c.ID, Lost: true})
		}
	}
	for i, s := range there {
		if !used[i] {
			f.coming = append(f.coming, f.comes(s))
		}
	}
}

// is reports whether s is what was seen before. That nothing else can have the inode of the log is certain where the
// file of the place is there, for then nothing that came after it was deleted.
func (c coming) is(s sibling, anchored bool) bool {
	if c.Name == "" {
		return !c.Lost && !s.zipped() && (s.id.certainly(c.ID) || anchored && s.id.maybe(c.ID))
	}
	return !c.Lost && s.name == c.Name && (s.zipped() || c.Zipped || s.id.sameInode(c.ID))
}

// overlooked reports whether a rotated file is there after all: a list of many files is not made in one moment, and the
// file may have been compressed meanwhile. The compressed one is there before the plain one goes.
func (f *follower) overlooked(c coming, there []sibling) bool {
	if c.Lost || rotationTime(f.path, c.Name).IsZero() || slices.ContainsFunc(there, func(s sibling) bool { return s.name == c.Name }) {
		return false
	}
	for _, name := range []string{c.Name, c.Name + compressed} {
		if info, err := os.Lstat(filepath.Join(filepath.Dir(f.path), name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// compressedMeanwhile reports whether what was the log, and is not seen any more, must be one of the compressed files
// that have appeared.
func (f *follower) compressedMeanwhile(c coming, known []coming, there []sibling, anchored bool) bool {
	return anchored && c.Name == "" && slices.ContainsFunc(there, func(s sibling) bool {
		return s.zipped() && !slices.ContainsFunc(known, func(k coming) bool { return k.Name == s.name })
	})
}

func (f *follower) comes(s sibling) coming {
	replaced := s.replaces || slices.ContainsFunc(f.coming, func(c coming) bool { return c.Lost && s.name != "" && c.Name == s.name })
	return coming{Name: s.name, ID: s.id, Zipped: s.zipped(), Replaced: replaced, sibling: s}
}

// openNext opens the oldest file that has not been read. It reports false when there is none.
func (f *follower) openNext() (bool, error) {
	if err := f.look(); err != nil {
		return false, err
	}
	if len(f.coming) == 0 {
		return false, nil
	}
	next := f.coming[0]
	if next.Lost {
		f.coming = f.coming[1:]
		f.gone("a rotated file is gone", 0, "file", next.Name, "inode", next.ID.Inode)
		return true, nil
	}
	opened, _, err := openSegment(next.sibling.path, nil, next.Zipped)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil // it has another name, or is lost
	case isDamaged(err):
		f.coming = f.coming[1:]
		f.damaged(next.sibling.path, 0, err)
		f.read[next.Name], f.last = finished{Inode: next.ID.Inode}, next.Name
		return true, nil
	case err != nil:
		return false, err
	case !opened.id.sameInode(next.ID):
		return true, opened.close() // another has the name by now
	}
	f.coming = f.coming[1:]
	opened.rotated = next.Name
	f.take(opened)
	return true, nil
}

func (f *follower) damaged(file string, from int64, err error) {
	f.gone("a compressed file is damaged", 0, "file", file, "from", from, "error", err)
}

// readLate reads what was written to a rotated file after its end had been read, by a writer that still held it.
// kube-apiserver is none: it closes the log before it renames it.
func (f *follower) readLate(ctx context.Context) error {
	s := f.late[0]
	f.late = f.late[1:]
	done := f.read[s.name]
	late, met, err := openSegment(s.path, &place{Offset: done.Offset, Head: digestOf(nil), Tail: digestOf(nil)}, false)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !met {
		return nil
	}
	if err != nil {
		return err
	}
	late.rotated = s.name
	if late.id.Inode == done.Inode {
		err = f.aside(ctx, late)
	}
	if err == nil {
		done.Offset = late.scanner.Offset()
		done.Size = done.Offset + late.scanner.Pending()
		f.read[s.name] = done
		f.save()
	}
	return errors.Join(err, late.close())
}

// aside reads a rotated file to its end without moving the place. What is missing in it was written after its rotation.
func (f *follower) aside(ctx context.Context, s *segment) error {
	current, seen, pending := f.current, f.seen, f.loss
	defer func() { f.current, f.seen, f.loss = current, seen, pending }()
	f.current, f.seen, f.loss = s, rotationTime(f.path, s.rotated), nil
	f.tellOversized(s)
	s.late = true
	for {
		before := s.scanner.Offset()
		readErr := s.read(f.onLine)
		f.noteRead(before)
		if !f.settle(ctx) {
			return ctx.Err()
		}
		if readErr == nil {
			continue
		}
		if f.loss != nil {
			f.end(f.tailer.options.Now())
		}
		if !f.recordGaps(ctx) {
			return ctx.Err()
		}
		if errors.Is(readErr, io.EOF) {
			return nil
		}
		return readErr
	}
}
