package openapi

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/paths"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

// described is docs/openapi.json.
type described struct {
	validator validator.Validator
	model     *v3.Document
}

func read(t *testing.T) described {
	t.Helper()
	text := require.Get(os.ReadFile("../../../docs/openapi.json"))(t)
	ok, errs := validatorOf(t, text).ValidateDocument()
	require.That(t, ok, "docs/openapi.json is not valid:\n%s", words(errs))
	var document map[string]any
	require.OK(t, json.Unmarshal(text, &document))
	closeSchemas(document["components"])
	closed := require.Get(json.Marshal(document))(t)
	model := require.Get(require.Get(libopenapi.NewDocument(closed))(t).BuildV3Model())(t)
	return described{validatorOf(t, closed), &model.Model}
}

func validatorOf(t *testing.T, text []byte) validator.Validator {
	t.Helper()
	document := require.Get(libopenapi.NewDocument(text))(t)
	v, errs := validator.NewValidator(document, config.WithFormatAssertions())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return v
}

// closeSchemas lets no object have a property that is not described. To programs the description leaves that open, so
// that a later version may say more.
func closeSchemas(part any) {
	switch v := part.(type) {
	case map[string]any:
		_, object := v["properties"].(map[string]any)
		if _, said := v["additionalProperties"]; object && !said && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		for _, inner := range v {
			closeSchemas(inner)
		}
	case []any:
		for _, inner := range v {
			closeSchemas(inner)
		}
	}
}

func words(errs []*errors.ValidationError) string {
	var b strings.Builder
	for _, e := range errs {
		fmt.Fprintf(&b, "%s: %s\n", e.Message, e.Reason)
		for _, s := range e.SchemaValidationErrors {
			fmt.Fprintf(&b, "  %s at %s\n", s.Reason, s.FieldPath)
		}
	}
	return b.String()
}

// answer is what is looked at here of what is answered; each has some of it.
type answer struct {
	ID, Key, Next, Outcome, Repair, State, Status, Where   string
	Count, Open, Seen                                      int
	Findings, Found, Groups, Items, Messages, Reservations []answer
	Act, Report, Result                                    *answer
	Now                                                    any
	Filter                                                 json.RawMessage
	Created                                                time.Time `json:"created_at"`
	From                                                   *answer   `json:"edited_from"`
}

// client asks a daemon, and holds what it asks and what it is answered against the description.
type client struct {
	t     *testing.T
	d     described
	base  string
	token string
	keys  int             // that it has made
	seen  map[string]bool // operations that were answered with success
}

// get asks for what is there.
func (c *client) get(path string) answer {
	c.t.Helper()
	a, _ := c.ask("GET", path, "", http.StatusOK)
	return a
}

// until asks again and again, and returns the answer that is as yes says.
func (c *client) until(what, path string, yes func(answer) bool) (a answer) {
	c.t.Helper()
	poll.Until(c.t, what, func() bool { a = c.get(path); return yes(a) })
	return a
}

// post wants something done that nobody asked for before.
func (c *client) post(status int, path, body string) answer {
	c.t.Helper()
	c.keys++
	a, _ := c.ask("POST", path, body, status, key, fmt.Sprint("key-", c.keys))
	return a
}

// ask sends a request that is as described; headers come in pairs. The answer must have the status.
func (c *client) ask(method, path, body string, status int, headers ...string) (answer, http.Header) {
	c.t.Helper()
	req := c.request(method, path, body, headers...)
	ok, errs := c.d.validator.ValidateHttpRequest(req)
	assert.That(c.t, ok, "%s %s is not as described:\n%s", method, path, words(errs))
	return c.answered(c.request(method, path, body, headers...), status)
}

func (c *client) request(method, path, body string, headers ...string) *http.Request {
	c.t.Helper()
	req := require.Get(http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body)))(c.t)
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	return req
}

func (c *client) answered(req *http.Request, status int) (a answer, _ http.Header) {
	c.t.Helper()
	resp := require.Get(http.DefaultTransport.RoundTrip(req))(c.t)
	defer resp.Body.Close()
	text := require.Get(io.ReadAll(resp.Body))(c.t)
	require.Is(c.t, resp.StatusCode, status, "%s %s: %s: HTTP", req.Method, req.URL, text)
	resp.Body = io.NopCloser(bytes.NewReader(text))
	ok, errs := c.d.validator.GetResponseBodyValidator().ValidateResponseBody(req, resp)
	assert.That(c.t, ok, "the answer to %s %s is not as described:\n%s%s", req.Method, req.URL, words(errs), text)
	if status < 300 {
		_, _, path := paths.FindPath(req, c.d.model, nil)
		c.seen[req.Method+" "+path] = true
	}
	_ = json.Unmarshal(text, &a) // what has another type there is not looked at
	return a, resp.Header
}

// key is the header that each request that does something carries.
const key = "Idempotency-Key"

// Given orders whose reservations were written under other numbers, so that their rollbacks are dead letters; when
// somebody who has docs/openapi.json alone looks why an order's stock did not come back, mends the cause and replays,
// then the stock comes back, each operation answers as it is described, and so does what is refused.
func TestEachAnswerIsAsTheDescriptionSays(t *testing.T) {
	d := read(t)
	binary := program.Shared(t)
	const token = "a-token-of-the-test"
	b, dsn := stack.AMQP(t), stack.MySQL(t)
	queue, exchange := b.Name("stock.rollback"), b.Name("stock")
	file := filepath.Join(t.TempDir(), "cancelled.sql")
	require.OK(t, os.WriteFile(file, []byte("SELECT 'stock.rollback' AS msg_tag, 'lost' AS msg_key, NULL AS body, NULL "+
		"AS created_at, sku_id AS after FROM stock WHERE sku_id = 1 AND sku_id > :after LIMIT :limit"), 0o600))
	env := []string{
		"PATH=" + os.Getenv("PATH"), "ROLLBACKD_AMQP_URL=" + b.URL, "ROLLBACKD_MYSQL_DSN=" + dsn,
		"ROLLBACKD_REDIS_URL=" + stack.Redis(t), "ROLLBACKD_QUEUE=" + queue, "ROLLBACKD_EXCHANGE=" + exchange,
		"ROLLBACKD_HTTP_ADDR=127.0.0.1:0", "ROLLBACKD_ADMIN_TOKEN=" + token, "ROLLBACKD_MAX_ATTEMPTS=1",
		"ROLLBACKD_MAX_DEAD_RATE=off", "ROLLBACKD_LANES=1", "ROLLBACKD_OUTBOX=on",
		"ROLLBACKD_EXPECTED_FILE=" + file,
	}
	require.Get(program.Run(t.Context(), binary, env, "migrate"))(t)
	db := require.Get(sql.Open("mysql", dsn))(t)
	t.Cleanup(func() { _ = db.Close() })
	orders := shop.Orders(rand.New(rand.NewPCG(1, 2)), "order", 5, 10)
	require.OK(t, shop.Stock(t.Context(), db, 10, 1000))
	require.OK(t, shop.SeedReserved(t.Context(), db, orders))
	stack.Exec(t, db, "UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn)")
	daemon := program.Serve(t, program.Options{Path: binary, Args: []string{"run"}, Env: env})
	for _, o := range orders {
		b.Publish(exchange, "stock.rollback", stack.Message{
			MessageId: o.Key(), Type: "stock.rollback", Body: o.Body(), DeliveryMode: 2,
		})
	}
	addr := require.Get(daemon.Addr(t.Context()))(t)
	c := &client{t: t, d: d, base: "http://" + addr + "/api/v1", token: token, seen: map[string]bool{}}
	c.until("all are dead", "/letters", func(a answer) bool { return len(a.Items) == len(orders) })
	list := c.get("/letters?limit=2")
	c.get("/letters?limit=2&after=" + list.Next)
	c.get("/letters?reason=permanent&reason=exhausted&since=2020-01-01T00:00:00Z&error=order&key=a&key=b")
	c.until("there is a sample with rates", "/overview", func(a answer) bool { return a.Now != nil })
	group := c.get("/letters/groups").Groups[0]
	for _, path := range []string{
		"/hour", "/charts?span=day", "/letters/groups/" + group.ID, "/letter?key=" + list.Items[0].Key,
		"/log?status=dead&limit=2", "/message?key=" + list.Items[0].Key, "/order?sn=" + orders[0].SN,
		"/runs/preview?kind=discard&tag=stock.rollback&limit=2", "/acts", "/pause",
	} {
		c.get(path)
	}

	act := c.post(http.StatusCreated, "/runs/rehearse", `{"filter":{"all":true}}`)
	ends := func(state string) answer { // waits until the last act has
		t.Helper()
		return c.until("the act is "+state, "/acts/"+act.ID, func(a answer) bool { return a.State == state })
	}
	all := ends("done").Result.Report.Groups
	assert.That(t, len(all) == 1 && all[0].Outcome == "blamed" && all[0].Count == len(orders), "it came to %+v", all)

	// the cause is mended, and what was dead goes back to work, once
	act = c.post(http.StatusCreated, "/pause", `{"why":"nobody may act meanwhile"}`)
	c.post(http.StatusConflict, "/pause", `{"why":"another"}`)
	act = c.post(http.StatusCreated, "/pause", `{"why":"longer","seconds":7200,"instead":"`+act.ID+`"}`)
	c.get("/pause")
	c.post(http.StatusCreated, "/resume", `{"why":"it is done","pause":"`+act.ID+`"}`)
	stack.Exec(t, db, "UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3)")
	b.Purge(queue + ".dead") // by mistake: the rows are dead and their letters gone
	c.ask("GET", "/reconcile", "", http.StatusNotFound)
	act = c.post(http.StatusCreated, "/reconcile", "")
	found := c.until("the comparison is done", "/reconcile", func(a answer) bool {
		return a.Act.ID == act.ID && a.Act.State == "done"
	}).Findings
	c.get("/reconcile?of=" + act.ID)
	require.That(t, len(found) == len(orders) && found[1].Repair == "republish", "the comparison has found %+v", found)
	mend := `{"of":"` + act.ID + `","number":1,"why":"purged by mistake"}`
	c.post(http.StatusCreated, "/reconcile/mend", mend)
	c.until("the message that was mended is applied", "/message?key="+found[1].Key, func(a answer) bool {
		return a.Messages[0].Status == "success"
	})
	act = c.post(http.StatusCreated, "/reconcile/expected", `{"why":"a backup was lost"}`)
	r := ends("done").Result.Report
	assert.That(t, r.Seen == 1 && r.Open == 1 && r.Found[0].Where == "not_seen", "what should have come: %+v", r)
	c.post(http.StatusNotFound, "/reconcile/mend", strings.Replace(mend, `"number":1`, `"number":99`, 1))
	run := fmt.Sprintf(`{"kind":"replay","filter":%s,"rate":0.001,"window":10,"max_failures":3}`, group.Filter)
	act = c.post(http.StatusCreated, "/runs", run)
	c.post(http.StatusConflict, "/runs", run)
	c.post(http.StatusOK, "/runs/"+act.ID+"/stop", "")
	ends("stopped")
	run = strings.Replace(run, `,"rate":0.001`, "", 1)
	before := act.ID
	act, _ = c.ask("POST", "/runs", run, http.StatusCreated, key, "twice")
	_, h := c.ask("POST", "/runs", run, http.StatusCreated, key, "twice")
	assert.That(t, h.Get("Idempotency-Replayed") == "true" && act.ID != before,
		"the same request again is answered with %v, act %s after %s", h, act.ID, before)
	at := url.QueryEscape(ends("done").Created.Format(time.RFC3339Nano))
	c.until("the order's stock is back", "/order?sn="+orders[0].SN, func(a answer) bool {
		return a.Messages[0].Status == "success" && a.Reservations[0].Status == "released"
	})
	for query, want := range map[string][]string{
		"limit=2": {act.ID, before}, "since=" + at: {act.ID}, "until=" + at + "&limit=1": {before},
	} {
		var ids []string
		for _, a := range c.get("/acts?" + query).Items {
			ids = append(ids, a.ID)
		}
		assert.Equal(t, ids, want, "the acts of %s", query)
	}

	stack.Exec(t, db, "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at, failed_at, reason) "+
		"VALUES ('order.cancelled', 'p', '{}', '9999-12-31', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'no queue')")
	parked, told := c.get("/outbox?state=parked").Items, c.get("/outbox/message?key=p").Messages
	c.get("/outbox/preview?kind=outbox_drop&key=p")
	assert.That(t, len(parked) == 1 && len(told) == 1 && parked[0].State == "parked",
		"the outbox is told as %+v and %+v, want one parked message", parked, told)
	c.post(http.StatusCreated, "/outbox", `{"kind":"outbox_drop","filter":{"keys":["p"]},"why":"nobody waits for it"}`)
	c.until("the message is dropped", "/outbox", func(a answer) bool { return len(a.Items) == 0 })
	b.Publish(exchange, "stock.rollback", stack.Message{MessageId: "text", Type: "stock.rollback", DeliveryMode: 2,
		Body: []byte(`{"order_sn":7}`)})
	c.until("it is dead", "/letters?key=text", func(a answer) bool { return len(a.Items) == 1 })
	text := `{"tag":"stock.rollback","key":"text","body":"{\"order_sn\":\"7\"}","why":"it was a number"}`
	c.post(http.StatusCreated, "/letter/edit", text)
	c.post(http.StatusUnprocessableEntity, "/letter/edit", text)
	told = c.get("/message?key=text%2Fedited-1").Messages
	assert.That(t, len(told) == 1 && told[0].From != nil && told[0].From.Key == "text", "the edited letter: %+v", told)
	for _, path := range []string{"/outbox/message?key=nobody", "/letter?key=nobody", "/message?key=nobody",
		"/order?sn=nobody", "/acts/nobody", "/letters/groups/nobody"} {
		c.ask("GET", path, "", http.StatusNotFound)
	}
	for _, req := range []*http.Request{ // which are not as described
		c.request("GET", "/letters?limit=100000", ""), c.request("GET", "/letters?nobody=knows", ""),
		c.request("POST", "/runs", `{"kind":"replay","filter":{"al":true}}`, key, "wrong"),
		c.request("POST", "/runs", `{"kind":"replay","filter":{"all":true}}`),
	} {
		c.answered(req, http.StatusUnprocessableEntity)
	}
	c.post(http.StatusNotFound, "/runs/nobody/stop", "")
	c.token = "wrong"
	c.ask("GET", "/letters", "", http.StatusUnauthorized)

	for path, item := range d.model.Paths.PathItems.FromOldest() {
		for method := range item.GetOperations().KeysFromOldest() {
			assert.That(t, c.seen[strings.ToUpper(method)+" "+path], "%s %s was not tried", method, path)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := daemon.Stop(ctx)
	assert.That(t, err == nil && code == 0, "the daemon ended with %d, %v", code, err)
}

// The test above can only fail if the validator notices what is wrong.
func TestWhatIsNotAsDescribedIsNoticed(t *testing.T) {
	t.Parallel()
	d := read(t)
	for _, c := range []struct {
		body string
		fine bool
	}{
		{`{"paused":false}`, true},
		{`{"paused":true,"id":"a","since":"2026-11-22T21:00:00Z"}`, true},
		{`{"paused":"no"}`, false},
		{`{}`, false},
		{`{"paused":false,"color":"red"}`, false},
		{`{"paused":true,"since":"yesterday"}`, false},
	} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/api/v1/pause", http.NoBody)
		resp := &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(c.body)),
		}
		ok, errs := d.validator.GetResponseBodyValidator().ValidateResponseBody(req, resp)
		assert.Is(t, ok, c.fine, "%s: %s", c.body, words(errs))
	}
}
