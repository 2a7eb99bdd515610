package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/screen"
)

// mostGroups is how many groups are named; where there are as many, nothing is said.
const mostGroups = 20

// UnknownGroup says that the log has no row of the group, and which groups it has: the name may be misspelt. It is ""
// where there is a row, and in a log without any row, which is new.
func (o Lookup) UnknownGroup(ctx context.Context) (string, error) {
	groups, err := o.Records.Groups(ctx, mostGroups)
	if err != nil || len(groups) == 0 || len(groups) == mostGroups || slices.Contains(groups, o.Group) {
		return "", err
	}
	return screen.Printable(fmt.Sprintf("no group named %s is in %s; there are: %s; a new one is there from its first "+
		"message on", o.Group, o.Records.Options().Table, strings.Join(groups, ", "))), nil
}
