package check

import (
	"fmt"
	"io"
	"os"
	"time"
)

const tellInterval = 2 * time.Second

// A meter tells how far the check has come: after tellInterval, and again after each. It counts bytes as they lie in
// the files.
type meter struct {
	out          io.Writer
	now          func() time.Time
	told         time.Time
	read, of     int64 // of is 0 where one of the sizes is not known
	lines, since int64 // since the last time it told: what lines were then
}

func newMeter(o Options) *meter {
	return &meter{out: o.Progress, now: o.Now, told: o.Now(), of: o.size()}
}

// size is that of all logs together, 0 if one of them has none.
func (o *Options) size() int64 {
	var sum int64
	for _, path := range o.Paths {
		var info os.FileInfo
		var err error
		if path != StandardInput {
			info, err = os.Stat(path)
		} else if file, ok := o.Stdin.(*os.File); ok {
			info, err = file.Stat()
		}
		switch {
		case err != nil: // it is reported in its turn
		case info == nil, !info.Mode().IsRegular() && !info.IsDir():
			return 0
		case info.Mode().IsRegular():
			sum += info.Size()
		}
	}
	return sum
}

// count adds lines, and tells if it is time to.
func (m *meter) count(lines int64) {
	m.lines += lines
	now := m.now()
	elapsed := now.Sub(m.told)
	if elapsed < tellInterval {
		return
	}
	of := ""
	if m.of > 0 {
		of = fmt.Sprintf(" of %s", megabytes(m.of))
	}
	fmt.Fprintf(m.out, "%s%s read, %.0f lines/s\n", megabytes(m.read), of, float64(m.lines-m.since)/elapsed.Seconds())
	m.told, m.since = now, m.lines
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// A metered reader counts into a meter what is read.
type metered struct {
	source io.Reader
	meter  *meter
}

func (m *metered) Read(b []byte) (int, error) {
	n, err := m.source.Read(b)
	m.meter.read += int64(n)
	return n, err
}
