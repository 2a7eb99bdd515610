package server

import (
	"encoding/json"
	"net/http"
)

// Problem answers with an error in the form of RFC 9457. The detail is a whole sentence for a person.
func Problem(w http.ResponseWriter, status int, detail string) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	writeJSON(w, "application/problem+json", status, struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(status), status, detail})
}

// writeJSON answers with what can always be written as JSON.
func writeJSON(w http.ResponseWriter, kind string, status int, v any) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who went away needs no answer
}
