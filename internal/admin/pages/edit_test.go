package pages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Given two texts, then what differs is shown from the first line that does to the last one, with two lines around it.
func TestADifferenceIsShownWithWhatStandsAroundIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		was, is string
		want    []line
	}{
		"nothing": {"a\nb", "a\nb", nil},
		"a line in the middle": {"1\n2\n3\nx\n5\n6\n7", "1\n2\n3\ny\n5\n6\n7", []line{
			{" ", "2"}, {" ", "3"}, {"-", "x"}, {"+", "y"}, {" ", "5"}, {" ", "6"},
		}},
		"a line more, which another one is like": {"a\na", "a\na\na", []line{{" ", "a"}, {" ", "a"}, {"+", "a"}}},
		"all":                                    {"a", "b", []line{{"-", "a"}, {"+", "b"}}},
		"the end is gone":                        {"a\nb", "a", []line{{" ", "a"}, {"-", "b"}}},
	} {
		if diff := cmp.Diff(tc.want, difference(tc.was, tc.is)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
