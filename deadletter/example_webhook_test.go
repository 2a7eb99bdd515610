package deadletter_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// webhookSecret is known to both ends.
const webhookSecret = "a-long-random-word"

// New letters are posted, and the receiver checks who says so. A consumer does this when its Config has the webhook as
// Notifier.
func ExampleNewWebhook() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			header := r.Header.Get(deadletter.SignatureHeader)
			err = deadletter.VerifySignature(webhookSecret, header, body, time.Now(), 5*time.Minute)
		}
		fmt.Println("genuine:", err == nil)
	}))
	defer receiver.Close()
	hook, err := deadletter.NewWebhook(deadletter.WebhookOptions{
		URL: receiver.URL, Secrets: func() []string { return []string{webhookSecret} },
	})
	if err != nil {
		log.Panic(err)
	}
	defer hook.Close()
	dead := deadletter.Letter{Group: "seats", Tag: "seats.free", Key: "booking-1", Reason: dedup.ReasonPermanent}
	if err := hook.Notify(context.Background(), []deadletter.Letter{dead}); err != nil {
		log.Panic(err)
	}
	// Output: genuine: true
}
