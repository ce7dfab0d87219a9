package file

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// resume takes up the log where the checkpoint has it.
func (f *follower) resume() error {
	s := f.tailer.checkpoints.get(f.path)
	f.read = maps.Clone(s.Read)
	if f.read == nil {
		f.read = map[string]uint64{}
	}
	if s.Place == nil {
		return nil
	}
	found, gone, err := f.locate(*s.Place)
	if err != nil {
		return err
	}
	if gone {
		f.gap("the file that was being read is gone; what is there is read from its beginning",
			"inode", s.Place.ID.Inode, "from", s.Place.Offset)
	}
	if found != nil {
		f.take(found)
	}
	return nil
}

// take makes s what is being read.
func (f *follower) take(s *segment) {
	s.scanner.Oversized = func(offset, length int64) { f.drop(offset, length, oversized, nil) }
	f.current, f.waiting = s, 0
	list, err := f.unread()
	if info, statErr := os.Stat(f.path); err == nil && statErr == nil {
		list = append(list, sibling{id: identify(info), size: info.Size()})
	}
	for _, later := range list {
		if later.id != identify(s.info) {
			f.waiting += later.size
		}
	}
	f.save()
}

// locate opens the file in which the place was taken, there: the one with its inode if that has the same contents,
// else one that has them, youngest first. It is nil if there is none, and gone says that there should be one.
func (f *follower) locate(p place) (found *segment, gone bool, err error) {
	list, err := f.unread()
	if err != nil {
		return nil, false, err
	}
	if info, err := os.Stat(f.path); err == nil {
		list = append(list, sibling{path: f.path, id: identify(info)})
	}
	if p.Offset == 0 {
		return nil, !mayHold(list, p.ID), nil
	}
	for _, sameInode := range []bool{true, false} {
		for _, s := range slices.Backward(list) {
			if sameInode != (s.id == p.ID) {
				continue
			}
			found, met, err := openSegment(s.path, &p, s.zipped())
			switch {
			case errors.Is(err, fs.ErrNotExist), isDamaged(err):
			case err != nil:
				return nil, false, err
			case met:
				found.rotated = s.name
				return found, false, nil
			}
		}
	}
	return nil, true, nil
}

// mayHold reports whether a file of which nothing was read, so that only its inode is known, may be in the list: it
// takes its turn there. Its inode alone does not make a file the same, and a compressed one has another.
func mayHold(list []sibling, id fileID) bool {
	return slices.ContainsFunc(list, func(s sibling) bool { return s.id == id || s.zipped() })
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
		f.gap("it was truncated before it was read", "file", f.current.file.Name(), "from", from, "to", seen)
	} else {
		f.log.Warn("The audit log was truncated; what was written since the last look is lost, if there was any",
			"file", f.current.file.Name(), "from", from)
	}
	f.close()
	f.save()
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
	before := f.current.scanner.Offset()
	f.current.finish(f.found)
	if !f.settle(ctx, before) {
		return ctx.Err()
	}
	name, inode, err := f.rotatedName()
	if err != nil {
		return err
	}
	if name != "" {
		f.read[name] = inode
	}
	f.close()
	f.save()
	return nil
}

// rotatedName is the name under which the current file lies now, empty if it is gone.
func (f *follower) rotatedName() (name string, inode uint64, err error) {
	inode = identify(f.current.info).Inode
	if f.current.rotated != "" {
		return f.current.rotated, inode, nil
	}
	list, err := f.unread()
	if err != nil {
		return "", 0, err
	}
	for _, s := range list {
		if s.id == identify(f.current.info) {
			return s.name, inode, nil
		}
	}
	end := f.current.trail.place(identify(f.current.info))
	for _, s := range list {
		if !s.zipped() {
			continue
		}
		zipped, met, err := openSegment(s.path, end, true)
		if err == nil && met {
			return s.name, inode, zipped.file.Close()
		}
	}
	return "", 0, nil
}

func (f *follower) close() {
	if f.current != nil {
		_ = f.current.file.Close()
	}
	f.current = nil
}

// unread are the rotated files that have not been read, oldest first.
func (f *follower) unread() ([]sibling, error) {
	all, err := siblings(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	var list []sibling
	for _, s := range all {
		names[s.name] = true
		inode, known := f.read[s.name]
		// Two rotations in one millisecond leave another file under the name.
		if !known || !s.zipped() && s.id.Inode != inode {
			list = append(list, s)
		}
	}
	maps.DeleteFunc(f.read, func(name string, _ uint64) bool { return !names[name] })
	return list, nil
}

// openNext opens the oldest rotated file that has not been read, or if there is none the log itself. The log is opened
// before the others are listed: what is older has its rotated name by then. It reports false when there is no file.
func (f *follower) openNext() (bool, error) {
	live, _, err := openSegment(f.path, nil, false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	list, err := f.unread()
	if err != nil {
		return false, errors.Join(err, live.close())
	}
	for _, s := range list {
		if live == nil || s.id != identify(live.info) { // else it was rotated just now
			return true, errors.Join(f.openSibling(s), live.close())
		}
	}
	if live == nil {
		return false, nil
	}
	f.take(live)
	return true, nil
}

// openSibling opens a rotated file. One that is gone meanwhile has another name, or is lost.
func (f *follower) openSibling(s sibling) error {
	opened, _, err := openSegment(s.path, nil, s.zipped())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if isDamaged(err) {
		f.gap("a compressed file is damaged", "file", s.path, "from", 0, "error", err)
		f.read[s.name] = s.id.Inode
		f.save()
		return nil
	}
	if err != nil {
		return err
	}
	opened.rotated = s.name
	f.take(opened)
	return nil
}
