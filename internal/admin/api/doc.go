// Package api is what a program sees and does: the same as the pages, as JSON under /api/v1. What it shows comes from
// internal/admin/view, what it does goes through internal/operator, as with the pages; errors are problems of RFC 9457.
//
// routes.go lists the routes; read.go has what they show, write.go what does something once under each Idempotency-Key;
// api.go serves them, refuses what would be dropped of a request, and says which error is which answer.
// docs/openapi.json describes them by hand, and a test holds the types to it. It must not decide what is shown.
package api
