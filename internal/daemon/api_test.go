package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// reply is what the API answered.
type reply struct {
	status         int
	header         http.Header
	location, text string
}

// into reads the answer, which must have the status.
func (r reply) into(t *testing.T, status int, v any) {
	t.Helper()
	require.That(t, r.status == status, "HTTP %d, want %d: %s", r.status, status, r.text)
	err := json.Unmarshal([]byte(r.text), v)
	require.That(t, err == nil, "%v: %s", err, r.text)
}

// is fails the test unless the answer has the status and says this.
func (r reply) is(t *testing.T, status int, says string) {
	t.Helper()
	assert.That(t, r.status == status && strings.Contains(r.text, says), "HTTP %d %v, want %d and %q: %s",
		r.status, r.header, status, says, r.text)
}

// gets reads what the API answers to one who may look.
func gets(t *testing.T, p *program.Process, path string, into any) {
	t.Helper()
	calls(t, p, rita, http.MethodGet, path, "").into(t, http.StatusOK, into)
}

// calls sends a request to the API as whoever has the token; a body is sent as JSON. Pairs are further headers.
func calls(t *testing.T, p *program.Process, token, method, path, body string, pairs ...string) reply {
	t.Helper()
	addr, err := p.Addr(t.Context())
	req, wrong := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err := errors.Join(err, wrong); err != nil {
		t.Error(err)
		return reply{}
	}
	req.Close = true
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(pairs, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return reply{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	assert.OK(t, err)
	return reply{resp.StatusCode, resp.Header, resp.Header.Get("Location"), string(text)}
}

// The tokens of one who may act and of one who may look.
const anna, rita = "token-of-anna-who-may-act", "token-of-rita-who-may-look"

// twoTokens is a file with them.
func twoTokens(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	require.OK(t, os.WriteFile(file, []byte("anna full "+anna+"\nrita read "+rita+"\n"), 0o600))
	return file
}

// pageOf is a page of a list of rows or letters.
type pageOf struct {
	Items []struct{ Key, Tag, Status, Reason string }
	Next  string
}

// keysOf walks through all pages of a list; the path has a question mark. No page may be larger than the limit.
func keysOf(t *testing.T, p *program.Process, path string, limit int) (keys []string) {
	t.Helper()
	for after := ""; ; {
		var page pageOf
		gets(t, p, fmt.Sprintf("%s&limit=%d&after=%s", path, limit, url.QueryEscape(after)), &page)
		require.That(t, len(page.Items) <= limit, "%s: a page of %d", path, len(page.Items))
		for _, item := range page.Items {
			keys = append(keys, item.Key)
		}
		if after = page.Next; after == "" {
			return keys
		}
	}
}

// Given dead letters, below a base path; when one who may look reads all that there is, then every letter and row is in
// its list exactly once however small the pages are, a group names a filter that finds its letters, and the order tells
// why its stock did not come back.
func TestTheAPITellsWhyStockDidNotComeBack(t *testing.T) {
	const n, at = 23, "/x/y/api/v1"
	w := newWorld(t, "MAX_ATTEMPTS", "1", "MAX_DEAD_RATE", "off", "LANES", "1", "BASE_PATH", "/x/y",
		"ADMIN_TOKENS_FILE", twoTokens(t))
	orders := w.open(n + 2)
	w.exec("UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn) WHERE order_sn NOT IN (?, ?)", orders[n].SN,
		orders[n+1].SN)
	p := w.start()
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("they are dead, and two are done", func() bool {
		return w.rows(dedup.Dead) == n && w.rows(dedup.Success) == 2
	})

	dead := keysOf(t, p, at+"/letters?tag=stock.rollback", 1000)
	require.Is(t, len(dead), n, "letters are listed")
	everyOnce := func(what string, got, want []string) {
		t.Helper()
		assert.That(t, slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))),
			"%s: %d are listed, want each of %d once: %v", what, len(got), len(want), got)
	}
	rows := keysOf(t, p, at+"/log?tag=stock.rollback", 1000)
	assert.Is(t, len(rows), n+2, "rows are listed")
	for _, limit := range []int{1, 7, n - 1, n, n + 1} {
		everyOnce("letters", keysOf(t, p, at+"/letters?reason=permanent&reason=exhausted", limit), dead)
		everyOnce("rows", keysOf(t, p, at+"/log?since=2020-01-01T00:00:00Z", limit), rows)
	}
	everyOnce("dead rows", keysOf(t, p, at+"/log?status=dead&status=failed", 7), dead)
	everyOnce("two keys", keysOf(t, p, at+"/letters?key="+url.QueryEscape(dead[0])+"&key="+url.QueryEscape(dead[5]), 1),
		[]string{dead[0], dead[5]})
	everyOnce("nothing", keysOf(t, p, at+"/letters?until=2020-01-01T00:00:00Z", 7), nil)

	var groups struct {
		Groups []struct {
			ID     string
			Count  int
			Filter struct {
				Reasons     []string
				Fingerprint string
			}
		}
		Seen int
	}
	gets(t, p, at+"/letters/groups", &groups)
	found := 0
	for _, g := range groups.Groups {
		found += g.Count
		chosen := keysOf(t, p, at+"/letters?reason="+g.Filter.Reasons[0]+"&fingerprint="+
			url.QueryEscape(g.Filter.Fingerprint), 7)
		assert.Is(t, len(chosen), g.Count, "the filter of group %s finds letters", g.ID)
		var one struct {
			Count   int
			Letters []struct{ Key string }
		}
		gets(t, p, at+"/letters/groups/"+g.ID, &one)
		assert.That(t, one.Count == g.Count && len(one.Letters) == g.Count, "group %s has %d letters and names %d, want %d",
			g.ID, one.Count, len(one.Letters), g.Count)
	}
	assert.That(t, found == n && groups.Seen == n, "the groups hold %d letters of %d seen, want %d", found, groups.Seen, n)

	var told struct{ Messages []struct{ Key, Next string } }
	gets(t, p, at+"/order?sn="+orders[3].SN, &told)
	require.That(t, len(told.Messages) == 1 && told.Messages[0].Next != "", "of the order it tells %+v", told)
	everyOnce("letters of an order", keysOf(t, p, at+"/letters?order="+orders[3].SN, 7), []string{told.Messages[0].Key})
	everyOnce("letters of an order that is done", keysOf(t, p, at+"/letters?order="+orders[n].SN, 7), nil)
	var letters struct{ Letters []struct{ Body string } }
	gets(t, p, at+"/letter?key="+url.QueryEscape(told.Messages[0].Key), &letters)
	var overview struct {
		DeadLetters struct{ Seen int } `json:"dead_letters"`
	}
	gets(t, p, at+"/overview", &overview)
	assert.That(t, len(letters.Letters) == 1 && strings.Contains(letters.Letters[0].Body, orders[3].SN) &&
		overview.DeadLetters.Seen == n, "the letter is %+v, and the overview says %+v", letters, overview)
	// a proxy may cut the base path off
	everyOnce("without the base path", keysOf(t, p, "/api/v1/letters?tag=stock.rollback", 7), dead)
	w.stop(p)
}

// Given a daemon, whatever is asked for in a way that cannot be answered, or larger than any need be, gets a problem of
// RFC 9457 that says what is wrong and repeats nothing of what was sent, and nothing is done. A line of
// testdata/problems.txt is TOKEN METHOD PATH, headers as NAME:VALUE and a body; below it stands the answer.
func TestTheAPIAnswersWhatItCannotTakeWithAProblem(t *testing.T) {
	const secret = "a-secret-that-nobody-repeats"
	w := newWorld(t, "ADMIN_TOKENS_FILE", twoTokens(t))
	p := w.start()
	golden.Says(t, "testdata/problems.txt", func(line string) string {
		line = repeated(line)
		parts := strings.SplitN(line+"  ", " ", 4)
		token := map[string]string{"anna": anna, "rita": rita, "-": "", "wrong": "wrong"}[parts[0]]
		rest := strings.TrimSpace(parts[3])
		var headers []string
		for rest != "" && rest[0] >= 'A' && rest[0] <= 'Z' {
			header, more, _ := strings.Cut(rest, " ")
			name, value, _ := strings.Cut(header, ":")
			headers, rest = append(headers, name, value), more
		}
		got := calls(t, p, token, parts[1], "/api/v1"+strings.TrimPrefix(parts[2], "."), rest, headers...)
		var problem struct {
			Title, Detail string
			Status        int
		}
		got.into(t, got.status, &problem)
		assert.That(t, problem.Status == got.status && problem.Title == http.StatusText(got.status) &&
			len(got.text) <= 4<<10 && got.header.Get("Content-Type") == "application/problem+json" &&
			(got.status != http.StatusUnprocessableEntity || !strings.Contains(got.text, secret)) &&
			got.header.Get("X-Content-Type-Options") == "nosniff" && got.header.Get("Cache-Control") == "no-store",
			"%.200s: %v %.500s", line, got.header, got.text)
		return fmt.Sprint(got.status, " ", problem.Detail)
	})
	is(w, "acts", w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind <> 'refused'"), 0)
	w.stop(p)
}

// apiAct is an act as the API has it.
type apiAct struct {
	ID, Kind, State, Actor string
	Sweeping               bool
	Result                 struct{ Replayed int }
}

// Given orders whose rollbacks are dead letters, two daemons and no Redis; when the cause is mended and the same run is
// asked for at once from both, four times each under one Idempotency-Key, then one run begins and every answer that is
// not "it is being done" is that of the first; the same request afterwards gets the first answer again, from either
// daemon, and another one under the key is refused; each order's stock is back once.
func TestTheAPIDoesOnceWhatIsAskedForUnderOneKey(t *testing.T) {
	const n, runs = 20, "/x/y/api/v1/runs"
	w, _, both := deadOrders(t, n, 2, "BASE_PATH", "/x/y", "REDIS_URL", "off")
	first, second := both[0], both[1]

	var preview struct {
		At      time.Time
		Filter  json.RawMessage
		Matched int
	}
	gets(t, first, runs+"/preview?kind=replay&tag=stock.rollback", &preview)
	require.Is(t, preview.Matched, n, "the preview says %+v", preview)
	body := fmt.Sprintf(`{"kind":"replay","filter":%s,"cut_off":%q,"rate":1000,"max_failures":5}`, preview.Filter,
		preview.At.Format(time.RFC3339Nano))
	const key = "one key/of the test"
	answers := make([]reply, 8)
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { answers[i] = calls(t, both[i%2], anna, http.MethodPost, runs, body, "Idempotency-Key", key) })
	}
	asking.Wait()
	var one reply
	for _, a := range answers {
		switch a.status {
		case http.StatusCreated:
			if one.text == "" {
				one = a
			}
			assert.That(t, a.location == one.location && a.text == one.text,
				"one answer is %s at %s, another %s at %s", one.text, one.location, a.text, a.location)
		case http.StatusConflict:
			a.is(t, http.StatusConflict, "is being done")
			assert.Is(t, a.header.Get("Retry-After") != "", true, "the answer meanwhile says when: %v", a.header)
		default:
			t.Errorf("an answer is HTTP %d: %s", a.status, a.text)
		}
	}
	require.That(t, one.text != "", "nobody was answered that it is done")
	var run apiAct
	one.into(t, http.StatusCreated, &run)
	assert.That(t, run.Kind == "replay" && run.Actor == "anna" && one.location == "/x/y/api/v1/acts/"+run.ID,
		"the act is %+v at %s", run, one.location)
	for _, p := range both {
		w.eventually("the run is done and the queue swept", func() bool {
			run = apiAct{} // what is missing in the answer is not what was there before
			gets(t, p, one.location, &run)
			return run.State == "done" && !run.Sweeping
		})
		spaced := strings.ReplaceAll(body, ",", " ,\n ") // the same, written otherwise
		again := calls(t, p, anna, http.MethodPost, runs, spaced, "Idempotency-Key", key)
		assert.That(t, again.status == http.StatusCreated && again.text == one.text &&
			again.header.Get("Idempotency-Replayed") == "true" && again.location == one.location,
			"asked again it answers HTTP %d %v %s, want %s", again.status, again.header, again.text, one.text)
		other := strings.Replace(body, `"rate":1000`, `"rate":999`, 1)
		for at, body := range map[string]string{runs: other, "/x/y/api/v1/resume": "{}"} {
			calls(t, p, anna, http.MethodPost, at, body, "Idempotency-Key", key).
				is(t, http.StatusUnprocessableEntity, "another request")
		}
	}
	assert.Is(t, run.Result.Replayed, n, "the run has replayed")
	is(w, "acts", w.count("SELECT COUNT(*) FROM consumer_log_act"), 1)
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	calls(t, second, anna, http.MethodPost, runs+"/"+run.ID+"/stop", "", "Idempotency-Key", "stop it").
		is(t, http.StatusConflict, "ended")
	w.rest(first, second)
}
