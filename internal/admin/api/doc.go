// Package api is what a program sees and does: the same as the pages, as JSON under /api/v1. What it shows comes from
// internal/admin/view, what it does goes through internal/operator, as with the pages; errors are problems of RFC 9457.
//
// api.go joins the routes and serves their description, docs/openapi.json, which is made from these very types;
// overview.go, letters.go, messages.go and acts.go read, write.go does, once under each Idempotency-Key, reconcile.go
// does both; words.go explains the types that are other packages' own; trouble.go says which error is which answer. A
// route is added where the others of its kind are, and `go test ./internal/admin/api -update` writes the description
// anew.
package api
