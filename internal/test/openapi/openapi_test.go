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
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"

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
	paths     map[string]map[string]struct {
		OperationID string `json:"operationId"`
	}
}

func read(t *testing.T) described {
	t.Helper()
	text := require.Get(os.ReadFile("../../../docs/openapi.json"))(t)
	if ok, errs := validatorOf(t, text).ValidateDocument(); !ok {
		t.Fatalf("docs/openapi.json is not valid:\n%s", words(errs))
	}
	var document map[string]any
	require.OK(t, json.Unmarshal(text, &document))
	closeSchemas(document["components"])
	closed := require.Get(json.Marshal(document))(t)
	d := described{validator: validatorOf(t, closed)}
	all := struct{ Paths any }{&d.paths}
	require.OK(t, json.Unmarshal(text, &all))
	return d
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

// client asks a daemon, and holds what it asks and what it is answered against the description.
type client struct {
	t     *testing.T
	d     described
	base  string
	token string
	seen  map[string]bool // operations that were answered with success
}

// ask sends a request that is as described; headers come in pairs. The answer must have the status and is read into v.
func (c *client) ask(method, path, body string, status int, v any, headers ...string) http.Header {
	c.t.Helper()
	req := c.request(method, path, body, headers)
	if ok, errs := c.d.validator.ValidateHttpRequest(req); !ok {
		c.t.Errorf("%s %s is not as described:\n%s", method, path, words(errs))
	}
	return c.answered(c.request(method, path, body, headers), status, v)
}

// askWrong sends a request that need not be as described.
func (c *client) askWrong(method, path, body string, status int, v any, headers ...string) {
	c.t.Helper()
	c.answered(c.request(method, path, body, headers), status, v)
}

func (c *client) request(method, path, body string, headers []string) *http.Request {
	c.t.Helper()
	req := require.Get(http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body)))(c.t)
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

func (c *client) answered(req *http.Request, status int, v any) http.Header {
	c.t.Helper()
	resp := require.Get(http.DefaultTransport.RoundTrip(req))(c.t)
	defer resp.Body.Close()
	text := require.Get(io.ReadAll(resp.Body))(c.t)
	if resp.StatusCode != status {
		c.t.Fatalf("%s %s: HTTP %d, want %d: %s", req.Method, req.URL, resp.StatusCode, status, text)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	if ok, errs := c.d.validator.GetResponseBodyValidator().ValidateResponseBody(req, resp); !ok {
		c.t.Errorf("the answer to %s %s is not as described:\n%s%s", req.Method, req.URL, words(errs), text)
	}
	if status < 300 {
		c.seen[c.operation(req)] = true
	}
	if v != nil {
		if err := json.Unmarshal(text, v); err != nil {
			c.t.Fatalf("%s %s: %v: %s", req.Method, req.URL, err, text)
		}
	}
	return resp.Header
}

// operation is the id of the operation that a request asks for; a path without parameters counts before one with.
func (c *client) operation(req *http.Request) string {
	c.t.Helper()
	asked := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/v1"), "/")
	found := ""
	for path, methods := range c.d.paths {
		steps := strings.Split(path, "/")
		fits := len(steps) == len(asked)
		for i := 0; fits && i < len(steps); i++ {
			fits = steps[i] == asked[i] || strings.HasPrefix(steps[i], "{")
		}
		op, ok := methods[strings.ToLower(req.Method)]
		if fits && ok && (found == "" || !strings.Contains(path, "{")) {
			found = op.OperationID
		}
	}
	if found == "" {
		c.t.Errorf("%s %s is no operation of the description", req.Method, req.URL.Path)
	}
	return found
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
	var list struct {
		Items []struct{ Key, Tag string }
		Next  string
	}
	poll.Until(t, "all are dead", func() bool {
		var all struct{ Items []struct{ Key string } }
		c.ask("GET", "/letters", "", http.StatusOK, &all)
		return len(all.Items) == len(orders)
	})
	c.ask("GET", "/letters?limit=2", "", http.StatusOK, &list)
	c.ask("GET", "/letters?limit=2&after="+list.Next, "", http.StatusOK, nil)
	c.ask("GET", "/letters?reason=permanent&reason=exhausted&since=2020-01-01T00:00:00Z&error=order&key=a&key=b", "",
		http.StatusOK, nil)
	poll.Until(t, "there is a sample with rates", func() bool {
		var o struct {
			Now *struct{ Up map[string]bool }
		}
		c.ask("GET", "/overview", "", http.StatusOK, &o)
		return o.Now != nil
	})
	var groups struct {
		Groups []struct {
			ID     string
			Filter json.RawMessage
		}
	}
	c.ask("GET", "/letters/groups", "", http.StatusOK, &groups)
	for _, path := range []string{
		"/hour", "/charts?span=day", "/letters/groups/" + groups.Groups[0].ID, "/letter?key=" + list.Items[0].Key,
		"/log?status=dead&limit=2", "/message?key=" + list.Items[0].Key, "/order?sn=" + orders[0].SN,
		"/runs/preview?kind=discard&tag=stock.rollback&limit=2", "/acts", "/pause",
	} {
		c.ask("GET", path, "", http.StatusOK, nil)
	}

	var act struct{ ID, State string }
	c.ask("POST", "/runs/rehearse", `{"filter":{"all":true}}`, http.StatusCreated, &act, key, "r1")
	var rehearsed struct {
		Result struct {
			Report struct {
				Groups []struct {
					Outcome string
					Count   int
				}
			}
		}
	}
	ends := func(state string, v any) { // waits until the last act has, and reads it once more
		t.Helper()
		poll.Until(t, "the act is "+state, func() bool {
			c.ask("GET", "/acts/"+act.ID, "", http.StatusOK, &act)
			return act.State == state
		})
		c.ask("GET", "/acts/"+act.ID, "", http.StatusOK, v)
	}
	ends("done", &rehearsed)
	if all := rehearsed.Result.Report.Groups; len(all) != 1 || all[0].Outcome != "blamed" || all[0].Count != len(orders) {
		t.Errorf("the rehearsal came to %+v", all)
	}

	// the cause is mended, and what was dead goes back to work, once
	c.ask("POST", "/pause", `{"why":"nobody may act meanwhile"}`, http.StatusCreated, &act, key, "k1")
	c.ask("POST", "/pause", `{"why":"another"}`, http.StatusConflict, nil, key, "k2")
	c.ask("POST", "/pause", `{"why":"longer","seconds":7200,"instead":"`+act.ID+`"}`, http.StatusCreated, &act, key, "k3")
	c.ask("GET", "/pause", "", http.StatusOK, nil)
	c.ask("POST", "/resume", `{"why":"it is done","pause":"`+act.ID+`"}`, http.StatusCreated, nil, key, "k4")
	stack.Exec(t, db, "UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3)")
	b.Purge(queue + ".dead") // by mistake: the rows are dead and their letters gone
	c.ask("GET", "/reconcile", "", http.StatusNotFound, nil)
	c.ask("POST", "/reconcile", "", http.StatusCreated, &act, key, "c1")
	var found struct {
		Act      struct{ ID, State string }
		Findings []struct {
			Number            int
			Kind, Key, Repair string
		}
	}
	poll.Until(t, "the comparison is done", func() bool {
		c.ask("GET", "/reconcile", "", http.StatusOK, &found)
		return found.Act.ID == act.ID && found.Act.State == "done"
	})
	c.ask("GET", "/reconcile?of="+act.ID, "", http.StatusOK, nil)
	if len(found.Findings) != len(orders) || found.Findings[1].Repair != "republish" {
		t.Fatalf("the comparison has found %+v", found)
	}
	mend := `{"of":"` + act.ID + `","number":1,"why":"purged by mistake"}`
	c.ask("POST", "/reconcile/mend", mend, http.StatusCreated, &act, key, "c2")
	poll.Until(t, "the message that was mended is applied", func() bool {
		var told struct{ Messages []struct{ Status string } }
		c.ask("GET", "/message?key="+found.Findings[1].Key, "", http.StatusOK, &told)
		return told.Messages[0].Status == "success"
	})
	c.ask("POST", "/reconcile/expected", `{"why":"a backup was lost"}`, http.StatusCreated, &act, key, "e1")
	var came struct {
		Result struct {
			Report struct {
				Seen, Open int
				Found      []struct {
					Where string
					Count int
				}
			}
		}
	}
	ends("done", &came)
	if r := came.Result.Report; r.Seen != 1 || r.Open != 1 || r.Found[0].Where != "not_seen" {
		t.Errorf("what should have come: %+v", came)
	}
	mend = strings.Replace(mend, `"number":1`, `"number":99`, 1)
	c.ask("POST", "/reconcile/mend", mend, http.StatusNotFound, nil, key, "c3")
	run := fmt.Sprintf(`{"kind":"replay","filter":%s,"rate":0.001,"window":10,"max_failures":3}`, groups.Groups[0].Filter)
	c.ask("POST", "/runs", run, http.StatusCreated, &act, key, "k5")
	c.ask("POST", "/runs", run, http.StatusConflict, nil, key, "k6")
	c.ask("POST", "/runs/"+act.ID+"/stop", "", http.StatusOK, nil, key, "k7")
	ends("stopped", nil)
	run = strings.Replace(run, `,"rate":0.001`, "", 1)
	before := act.ID
	c.ask("POST", "/runs", run, http.StatusCreated, &act, key, "k8")
	if h := c.ask("POST", "/runs", run, http.StatusCreated, nil, key, "k8"); h.Get("Idempotency-Replayed") != "true" ||
		act.ID == before {
		t.Errorf("the same request again is answered with %v, act %s after %s", h, act.ID, before)
	}
	var last struct {
		Created time.Time `json:"created_at"`
	}
	ends("done", &last)
	poll.Until(t, "the order's stock is back", func() bool {
		var told struct {
			Messages     []struct{ Status string }
			Reservations []struct{ Status string }
		}
		c.ask("GET", "/order?sn="+orders[0].SN, "", http.StatusOK, &told)
		return told.Messages[0].Status == "success" && told.Reservations[0].Status == "released"
	})
	var acts struct{ Items []struct{ ID string } }
	c.ask("GET", "/acts?limit=2", "", http.StatusOK, &acts)
	if len(acts.Items) != 2 || acts.Items[0].ID != act.ID || acts.Items[1].ID != before {
		t.Errorf("the last acts are %v, want %s after %s", acts, act.ID, before)
	}
	at := url.QueryEscape(last.Created.Format(time.RFC3339Nano))
	c.ask("GET", "/acts?since="+at, "", http.StatusOK, &acts)
	if len(acts.Items) != 1 || acts.Items[0].ID != act.ID {
		t.Errorf("the acts since the last one are %v, want %s alone", acts, act.ID)
	}
	c.ask("GET", "/acts?until="+at+"&limit=1", "", http.StatusOK, &acts)
	if len(acts.Items) != 1 || acts.Items[0].ID != before {
		t.Errorf("the last act before the last one is %v, want %s", acts, before)
	}

	stack.Exec(t, db, "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at, failed_at, reason) "+
		"VALUES ('order.cancelled', 'p', '{}', '9999-12-31', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'no queue')")
	var outbox struct {
		Items, Messages []struct{ State string }
	}
	c.ask("GET", "/outbox?state=parked", "", http.StatusOK, &outbox)
	c.ask("GET", "/outbox/message?key=p", "", http.StatusOK, &outbox)
	c.ask("GET", "/outbox/preview?kind=outbox_drop&key=p", "", http.StatusOK, nil)
	if len(outbox.Items) != 1 || len(outbox.Messages) != 1 || outbox.Items[0].State != "parked" {
		t.Errorf("the outbox is told as %+v, want one parked message", outbox)
	}
	c.ask("POST", "/outbox", `{"kind":"outbox_drop","filter":{"keys":["p"]},"why":"nobody waits for it"}`,
		http.StatusCreated, nil, key, "o1")
	poll.Until(t, "the message is dropped", func() bool {
		var told struct{ Items []any }
		c.ask("GET", "/outbox", "", http.StatusOK, &told)
		return len(told.Items) == 0
	})
	b.Publish(exchange, "stock.rollback", stack.Message{MessageId: "text", Type: "stock.rollback", DeliveryMode: 2,
		Body: []byte(`{"order_sn":7}`)})
	poll.Until(t, "it is dead", func() bool {
		var dead struct{ Items []struct{ Key string } }
		c.ask("GET", "/letters?key=text", "", http.StatusOK, &dead)
		return len(dead.Items) == 1
	})
	text := `{"tag":"stock.rollback","key":"text","body":"{\"order_sn\":\"7\"}","why":"it was a number"}`
	c.ask("POST", "/letter/edit", text, http.StatusCreated, &act, key, "t1")
	c.ask("POST", "/letter/edit", text, http.StatusUnprocessableEntity, nil, key, "t2")
	var told struct {
		Messages []struct {
			From struct{ Key string } `json:"edited_from"`
		}
	}
	c.ask("GET", "/message?key=text%2Fedited-1", "", http.StatusOK, &told)
	if len(told.Messages) != 1 || told.Messages[0].From.Key != "text" {
		t.Errorf("of the edited letter it is told %+v", told)
	}
	for _, path := range []string{"/outbox/message?key=nobody", "/letter?key=nobody", "/message?key=nobody",
		"/order?sn=nobody", "/acts/nobody", "/letters/groups/nobody"} {
		c.ask("GET", path, "", http.StatusNotFound, nil)
	}
	c.askWrong("GET", "/letters?limit=100000", "", http.StatusUnprocessableEntity, nil)
	c.askWrong("GET", "/letters?nobody=knows", "", http.StatusUnprocessableEntity, nil)
	c.askWrong("POST", "/runs", `{"kind":"replay","filter":{"al":true}}`, http.StatusUnprocessableEntity, nil, key, "k9")
	c.askWrong("POST", "/runs", `{"kind":"replay","filter":{"all":true}}`, http.StatusUnprocessableEntity, nil)
	c.ask("POST", "/runs/nobody/stop", "", http.StatusNotFound, nil, key, "k10")
	c.token = "wrong"
	c.ask("GET", "/letters", "", http.StatusUnauthorized, nil)

	for path, methods := range d.paths {
		for method, op := range methods {
			if !c.seen[op.OperationID] {
				t.Errorf("%s %s was not tried", method, path)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if code, err := daemon.Stop(ctx); err != nil || code != 0 {
		t.Errorf("the daemon ended with %d, %v", code, err)
	}
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
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/api/v1/pause", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp := &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(c.body)),
		}
		if ok, errs := d.validator.GetResponseBodyValidator().ValidateResponseBody(req, resp); ok != c.fine {
			t.Errorf("%s: %v, want %v\n%s", c.body, ok, c.fine, words(errs))
		}
	}
}
