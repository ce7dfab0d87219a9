package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// others are lines that hold what makes a line ours, and are not ours.
func others(t testing.TB) map[string][]byte {
	role := `"requestObject":{"kind":"Role","rules":[{"apiGroups":[""],"resources":["secrets"],"resourceNames":["a.b.account"],"verbs":["patch"]}]},"responseStatus"`
	return map[string][]byte{
		"a list of credentials":            []byte(with(t, mint, `"verb":"create"`, `"verb":"list"`, `,"subresource":"mint"`, ``)),
		"a read of an account Secret":      []byte(with(t, write, `"verb":"update"`, `"verb":"get"`)),
		"a Role that names one":            []byte(with(t, write, `"resource":"secrets"`, `"resource":"roles"`, `"apiVersion":"v1",`, `"apiGroup":"rbac.authorization.k8s.io",`, `"responseStatus"`, role)),
		"a body with what looks like ours": []byte(with(t, write, `"resource":"secrets"`, `"resource":"configmaps"`, `"responseStatus"`, `"requestObject":`+mint+`,"responseStatus"`)),
	}
}

func TestLinesOfOthersThatLookLikeOursCostNoMemory(t *testing.T) {
	for name, line := range others(t) {
		require.True(t, couldBeOurs(line), name)
		_, ours, err := Decode(line)
		require.NoError(t, err, name)
		require.False(t, ours, name)
		require.Less(t, testing.AllocsPerRun(1000, func() { _, _, _ = Decode(line) }), 1.0, name)
	}
}

func TestALineIsOfOthersOnlyIfThatIsCertain(t *testing.T) {
	for name, line := range others(t) {
		require.True(t, isOthers(line), name)
		require.False(t, isOthers(line[:len(line)-1]), "torn: %s", name)
		require.False(t, isOthers(append(line[:len(line):len(line)], "{}"...)), "another behind it: %s", name)
	}
	f := func(want bool, line string, parts ...string) {
		t.Helper()
		require.Equal(t, want, isOthers([]byte(with(t, line, parts...))))
	}
	f(false, mint)
	f(false, write)
	f(true, mint, `"verb":"create"`, `"verb":"get"`)
	f(false, mint, `"verb":"create"`, `"verb":"get","verb":"create"`)
	f(false, mint, `"verb":"create"`, `"verb":"cre\u0061te"`)
	f(false, mint, `"verb":"create"`, `"verb":17`)
	f(false, mint, `"verb":"create"`, `"verb":null`)
	f(false, mint, `"objectRef":{`, `"objectRef":[{`)
	f(false, mint, `"verb":"create"`, "\"verb\":\"list\xff\"")
	f(true, mint, `"verb":`, `"Verb":`)
	f(true, write, `"apiVersion":"v1",`, `"apiGroup":"example.com",`)
	f(true, mint, `"objectRef":{`, `"objectRef":null,"other":{`)
}

// FuzzLikeness holds that what is certainly of others is not ours, whichever reader of JSON reads it.
func FuzzLikeness(f *testing.F) {
	for _, line := range others(f) {
		f.Add(line)
	}
	f.Add([]byte(mint))
	f.Add([]byte(write))
	f.Fuzz(func(t *testing.T, line []byte) {
		if _, ours, _ := decode(line); ours {
			require.False(t, isOthers(line), "%s", line)
		}
	})
}
