package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// collect reads all items of a body.
func collect(body io.Reader, maxItem int) (list []string, err error) {
	err = newItems(body, maxItem).each(func(item []byte, length int64) error {
		if length > int64(len(item)) {
			list = append(list, fmt.Sprintf("%s…%d", item, length))
		} else {
			list = append(list, string(item))
		}
		return nil
	})
	return list, err
}

func TestItemsAreFoundWhereverTheyStandInTheList(t *testing.T) {
	f := func(body string, want ...string) {
		t.Helper()
		for _, reader := range []io.Reader{
			strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body)), iotest.DataErrReader(strings.NewReader(body)),
		} {
			got, err := collect(reader, 100)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	f(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"a":1},{"b":[2,{}]}]}`, `{"a":1}`, `{"b":[2,{}]}`)
	f(`{"items":[]}`)
	f(" { \"items\" : [ {\n} , 1 ,\"]\",null\t,true ] , \"kind\" : 7 } \r\n", "{\n}", `1`, `"]"`, `null`, `true`)
	f(`{"items":[{"a":"\"}],\\"},{}]}`, `{"a":"\"}],\\"}`, `{}`)
	f(`{"items":null,"items":[1]}`, `1`)
	f(`{"metadata":{"items":[1]},"itemsOfOthers":[2],"item":[3],"items":[4]}`, `4`)
	f(`{"items":[1],"items":[2]}`, `1`, `2`)
}

func TestWhatIsWrongWithinAnItemIsTheItemsOwn(t *testing.T) {
	got, err := collect(strings.NewReader("{\"items\":[{\"a\":\"\x01\\q\"},{a b},nonsense,{\"x\":1}{,{\"y\":\xff}]}"), 100)
	require.Error(t, err) // `{"x":1}{` leaves no way to tell where the next begins
	require.Equal(t, []string{"{\"a\":\"\x01\\q\"}", "{a b}", "nonsense", `{"x":1}`}, got)
	got, err = collect(strings.NewReader("{\"items\":[{,},{\"y\":\xff}]}"), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"{,}", "{\"y\":\xff}"}, got)
}

func TestAnItemBeyondTheLimitKeepsItsBeginningAndSpoilsNoOther(t *testing.T) {
	long := `{"a":"` + strings.Repeat("x", 100) + `","b":[{}]}`
	got, err := collect(strings.NewReader(`{"items":[1,`+long+`,2]}`), 10)
	require.NoError(t, err)
	require.Equal(t, []string{"1", fmt.Sprintf("%s…%d", long[:10], len(long)), "2"}, got)
}

func TestABodyThatIsNoListSaysWhereWithoutQuotingIt(t *testing.T) {
	f := func(offset int, body string, before ...string) {
		t.Helper()
		got, err := collect(strings.NewReader(body), 100)
		var framing *framingError
		require.ErrorAs(t, err, &framing, body)
		require.Equal(t, int64(offset), framing.offset, body)
		require.Equal(t, before, got, body)
		require.NotContains(t, err.Error(), "secret")
	}
	f(0, ``)
	f(0, `secret`)
	f(0, `[{"items":[]}]`)
	f(1, `{secret":1}`)
	f(1, `{`)
	f(9, `{"items" [secret]}`)
	f(10, `{"items":[`)
	f(13, `{"items":[1,2`, "1")
	f(14, `{"items":[1,2]`, "1", "2")
	f(12, `{"items":[1 secret]}`, "1")
	f(11, `{"items":[1}`, "1")
	f(10, `{"items":[,]}`)
	f(12, `{"items":[1,]}`, "1")
	f(12, `{"items":[1]]`, "1")
	f(11, `{"items":[[}]}`)
	f(14, `{"items":[1]} {"items":[2]}`, "1")
	f(1, `{}`+"\n")
	f(13, `{"items":null}`)
	f(10+maxDepth, `{"items":[`+strings.Repeat("[", maxDepth+1))
}

func TestReadErrorsAndThoseOfTheCallerComeBackAsTheyAre(t *testing.T) {
	broken := errors.New("broken")
	got, err := collect(io.MultiReader(strings.NewReader(`{"items":[1,2`), iotest.ErrReader(broken)), 100)
	require.ErrorIs(t, err, broken)
	require.Equal(t, []string{"1"}, got)
	_, err = collect(io.MultiReader(strings.NewReader(`{"items":[1]}`), iotest.ErrReader(broken)), 100)
	require.ErrorIs(t, err, broken)
	err = newItems(strings.NewReader(`{"items":[1,2]}`), 100).each(func([]byte, int64) error { return broken })
	require.ErrorIs(t, err, broken)
}

func TestTheRestBeginsWithTheItemThatBroke(t *testing.T) {
	f := func(want, body string) {
		t.Helper()
		list := newItems(strings.NewReader(body), 100)
		require.Error(t, list.each(func([]byte, int64) error { return nil }))
		require.Equal(t, want, string(list.rest(100)))
	}
	f(`{"b":]}, 3]}`, `{"items":[{"a":1},{"b":]}, 3]}`)
	f(`<html>`, `<html>`)
	f(`{"b":`, `{"items":[1,{"b":`)
	f(`"x":2}`, `{"items":[1]}"x":2}`)
}

// FuzzItems holds that of every JSON that encoding/json takes for a list the same items are found, whatever the reads,
// and that nothing else makes it panic or keep more of an item than it may.
func FuzzItems(f *testing.F) {
	f.Add([]byte(`{"kind":"EventList","items":[{"a":"\"}]"},[1,{}],"x",-1e4,null]}`))
	f.Add([]byte(`{"items":[{"a":1},{"b":`))
	f.Add([]byte(`{"items":[[[}]]]}`))
	f.Add([]byte("{\"\\u0069tems\":[1], \"items\" :[ \"\\\\\" ]\n}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := collect(bytes.NewReader(body), 1<<20)
		again, errAgain := collect(iotest.OneByteReader(bytes.NewReader(body)), 1<<20)
		require.Equal(t, got, again)
		require.Equal(t, err, errAgain)
		short, _ := collect(bytes.NewReader(body), 3)
		require.Len(t, short, len(got))

		var list map[string]json.RawMessage
		if json.Unmarshal(body, &list) != nil || bytes.Count(body, []byte(`tems"`)) != 1 {
			return
		}
		var want []json.RawMessage
		if json.Unmarshal(list["items"], &want) != nil || list["items"] == nil || string(list["items"]) == "null" {
			return
		}
		if !bytes.Contains(body, []byte(`"items"`)) {
			return // escaped, which nobody does
		}
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, string(want[i]), got[i])
		}
	})
}
