package rabbit_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given messages to one exchange and key, of which some have another queue that takes them and some have none, when
// they are under way together, then each gets its own verdict: what was returned is known by what it is.
func TestAReturnedMessageIsTakenForNoneOfItsNeighbours(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	twins := rabbit.Table{"int": 7, "small": int16(7), "yes": true, "at": at, "none": nil, "bytes": []byte("b"),
		"list": []any{1, "two", map[string]any{"three": uint8(3)}}, "map": rabbit.Table{"deep": rabbit.Table{"x": 1.5}}}
	for name, tell := range map[string]func(m *rabbit.Message, i int){
		"by message_id":     func(m *rabbit.Message, i int) { m.MessageID = fmt.Sprint(i) },
		"by correlation_id": func(m *rabbit.Message, i int) { m.CorrelationID = fmt.Sprint(i) },
		"by body":           func(m *rabbit.Message, i int) { m.Body = []byte(fmt.Sprint(i)) },
		"by time":           func(m *rabbit.Message, i int) { m.Timestamp = at.Add(time.Duration(i) * time.Second) },
		"by a header":       func(m *rabbit.Message, i int) { m.Headers["key"] = fmt.Sprint(i) },
		"by a time in a header": func(m *rabbit.Message, i int) {
			m.Headers["key"] = at.Add(time.Duration(i) * time.Second)
		},
		"by an element of a list": func(m *rabbit.Message, i int) { m.Headers["key"] = []any{rabbit.Table{"a": i}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stack.AMQP(t)
			q, nowhere := b.Name("some"), b.Name("none")
			b.DeclareQueue(q, quorum(nil))
			p := publisher(t, config(b.URL))
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					batch, want := make([]rabbit.Publishing, 400), map[int]error{} // 4 × 400 is more than the window
					for i := range batch {
						m := rabbit.Message{Headers: rabbit.Table{}}
						maps.Copy(m.Headers, twins)
						if i%7 != 0 {
							m.Headers["CC"] = []any{q} // is routed, though by another key
						} else {
							m.Headers["CC"], want[i] = []any{nowhere}, rabbit.ErrUnroutable
						}
						tell(&m, 1000*g+i)
						batch[i] = rabbit.Publishing{Key: nowhere, Message: m}
					}
					verdicts(t, p, batch, want)
				})
			}
			wg.Wait()
			assert.Is(t, b.Depth(q), 4*342, "messages arrived")
		})
	}
}

// Messages that are equal in everything cannot be told apart: none is reported as published that did not arrive.
func TestOfEqualMessagesNoneIsPublishedThatWasReturned(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q := b.Name("late")
	p := publisher(t, config(b.URL))
	batch := make([]rabbit.Publishing, 8_000)
	for i := range batch {
		batch[i] = to(q, "the same")
	}
	published, arrived := publishWhileMade(t, b, p, q, batch)
	assert.AtMost(t, published, arrived, "were reported as published, have arrived")
}

// RabbitMQ takes the header BCC off what it gets: what comes back then equals nothing that was sent.
func TestAReturnedMessageThatTheBrokerHasChangedIsNotTakenForPublished(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q, nowhere := b.Name("some"), b.Name("none")
	b.DeclareQueue(q, nil)
	p := publisher(t, config(b.URL))
	changed := to(nowhere, "changed")
	changed.Headers = rabbit.Table{"BCC": []any{nowhere}}
	verdicts(t, p, []rabbit.Publishing{to(q, "1"), changed, to(q, "2")}, map[int]error{1: rabbit.ErrUnroutable})
}

// Given a queue that is gone and made again while many publish to it, when a message is confirmed, then it is never
// reported as returned because its neighbour was: whoever publishes what was returned again makes no second one.
func TestAConfirmedMessageIsNotReturnedBecauseItsNeighbourWas(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q := b.Name("late")
	batch := make([]rabbit.Publishing, 8_000)
	for i := range batch {
		batch[i] = to(q, fmt.Sprint(i))
	}
	published, arrived := publishWhileMade(t, b, publisher(t, config(b.URL)), q, batch)
	assert.Is(t, published, arrived, "were reported as published, have arrived")
}

// publishWhileMade publishes a batch to a queue that comes to be in the middle of it.
func publishWhileMade(
	t *testing.T, b *stack.Broker, p *rabbit.Publisher, q string, batch []rabbit.Publishing,
) (published, arrived int) {
	t.Helper()
	p.Publish(t.Context(), batch[:1]) // dials, and comes back
	b.Track(q)
	made := make(chan struct{})
	go func() {
		defer close(made)
		b.DeclareQueue(q, nil)
	}()
	errs := p.Publish(t.Context(), batch)
	<-made
	for _, err := range errs {
		switch {
		case err == nil:
			published++
		case !errors.Is(err, rabbit.ErrUnroutable) || !strings.Contains(err.Error(), q):
			t.Fatal(err)
		}
	}
	if published == 0 || published == len(batch) {
		t.Logf("%d of %d were published: the queue was not made in the middle", published, len(batch))
	}
	return published, b.Depth(q)
}
