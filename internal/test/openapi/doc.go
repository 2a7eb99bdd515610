// Package openapi holds the API of a real daemon against docs/openapi.json, and shows that a person with that file and
// an HTTP client finds why an order's stock did not come back, mends it and sees it come back. It is a module of its
// own, whose libraries stay out of rollbackd's, and holds tests only.
package openapi
