package cli

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestTheCureOfAnOrderGivesItsNumberAndAFreeIdentity(t *testing.T) {
	for _, order := range []string{`a\b`, `a\nb`, `tab\c`, "20261121-0001", `it's "$(x)" & <y>`} {
		f := operator.Finding{
			Kind: operator.SuccessNotReleased, Tag: "stock.rollback", Key: order, Order: order,
			Items: []operator.Item{{SKU: 1, Quantity: 2}},
		}
		command := f.Cure("x", time.Now())
		echo, publish, _ := strings.Cut(command, " | ")
		body := require.Get(exec.CommandContext(t.Context(), "sh", "-c", echo).Output())(t)
		sources, _ := wire.ParseKeySources("json:/order_sn") // the setting under which a key is the order's number
		tag := publish[strings.LastIndex(publish, " ")+1:]
		id, err := wire.Identify("g", sources, "q", rabbit.Delivery{
			Message: rabbit.Message{Type: tag, Body: []byte(strings.TrimSuffix(string(body), "\n"))},
		})
		if err != nil || id.Identity.Key != order {
			t.Errorf("order %q: %s\ngives %q: key %q, %v", order, command, body, id.Identity.Key, err)
		}
		if id.Identity.Tag == f.Tag && id.Identity.Key == f.Key {
			t.Errorf("order %q: the message has the identity of the one that is success, and another body: it ends as conflict",
				order)
		}
	}
}
