package consumer_test

import (
	"context"
	"fmt"
	"log"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// openDoor has a span of its own, in ctx.
func openDoor(context.Context, *gorm.DB, consumer.Message) error { return nil }

// Each call of the handler is a span of OpenTelemetry.
func ExampleTraced() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Publish("doors.open", "door-1", "{}")

	spans := tracetest.NewInMemoryExporter() // a program of yours exports them to its collector
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "doors.open", Migrate: true,
		Observe: func(consumer.Ended) { ended() },
	}, consumer.With(consumer.Each(openDoor), consumer.Traced(provider)))
	if err != nil {
		log.Panic(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
	}
	// Output: handle doors.open
}
