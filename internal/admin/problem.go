package admin

import (
	"encoding/json"
	"net/http"
)

// Problem answers with an error in the form of RFC 9457. The detail is a whole sentence for a person.
func Problem(w http.ResponseWriter, status int, detail string) {
	text, err := json.Marshal(struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(status), status, detail})
	if err != nil { // cannot be: two texts and a number
		http.Error(w, detail, status)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // who went away needs no answer
}
