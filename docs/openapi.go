// Package docs holds the document that a daemon gives to programs, openapi.json, in which the API is described. It must
// hold nothing else that the program needs.
package docs

import _ "embed"

// OpenAPI is openapi.json.
//
//go:embed openapi.json
var OpenAPI []byte
