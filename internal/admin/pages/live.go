package pages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/server"
)

const (
	// liveEvery is how often a page is drawn anew for who watches it.
	liveEvery = 2 * time.Second
	// liveTime ends a stream: the browser asks again, and is let in again or not.
	liveTime = 5 * time.Minute
	// mostStreams bounds the streams of a process, mostOfOne those of a person: a token may be that of several people.
	mostStreams, mostOfOne = 64, 32
	// liveWrite bounds how long a browser may take to read what it is sent.
	liveWrite = 10 * time.Second
)

// events sends each part of a page that is marked as live, whenever it has changed.
func (p *Pages) events(w http.ResponseWriter, r *http.Request, name string, make maker) {
	leave, ok := p.streams.Enter(server.Who(r.Context()).Name)
	if !ok {
		server.Crowded(w, "pages are watched")
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	out := http.NewResponseController(w)
	sent := map[string]string{}
	tick, end := time.NewTicker(liveEvery), time.NewTimer(liveTime)
	defer tick.Stop()
	defer end.Stop()
	for {
		text, status := p.draw(w, r, name, make)
		if status != http.StatusOK {
			return
		}
		var b bytes.Buffer
		b.WriteString(": still here\n\n")
		for id, part := range liveParts(text) {
			if sent[id] == part {
				continue
			}
			sent[id] = part
			data, err := json.Marshal(map[string]string{"id": id, "html": part})
			if err != nil {
				return
			}
			fmt.Fprintf(&b, "event: part\ndata: %s\n\n", data)
		}
		err := out.SetWriteDeadline(time.Now().Add(liveWrite))
		if err == nil {
			_, err = w.Write(b.Bytes())
		}
		if err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-p.ending:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// livePart is the mark of a live part in a page. Templates escape what comes from strangers, so only they can write it.
var livePart = regexp.MustCompile(`(?s)<live-part id="(.*?)">(.*?)</live-part>`)

// liveParts are the insides of the parts of a page that are marked as live, by their ids.
func liveParts(page []byte) map[string]string {
	parts := map[string]string{}
	for _, m := range livePart.FindAllSubmatch(page, -1) {
		parts[string(m[1])] = string(m[2])
	}
	return parts
}
