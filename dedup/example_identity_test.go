package dedup_test

import (
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// A message's identity is its group, its tag and its own key.
func ExampleIdentity() {
	k := dedup.Identity{Group: "stock-rollback", Tag: "stock.rollback", Key: "20261121-0001"}
	fmt.Println(k, k.Validate())
	// Output: stock-rollback/stock.rollback/"20261121-0001" <nil>
}
