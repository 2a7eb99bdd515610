package api

import (
	"maps"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/dedup"
)

const about = `What the pages of a rollbackd daemon show and do, for programs: why messages are dead, what is known
of one message or order, and how to put dead letters back to work. Any daemon of a group answers for all of it.

Every request carries "Authorization: Bearer TOKEN". Errors are problems of RFC 9457, whose detail is a sentence for a
person. Lists have pages: give what an answer calls next as after, with the same filter. Times are RFC 3339, in UTC;
those of rows are by the database's clock. A later version may add properties and kinds, and takes none away.`

func tags() []*huma.Tag {
	return []*huma.Tag{
		{Name: "Overview", Description: "How it stands right now."},
		{Name: "Dead letters", Description: "Messages that were given up, and why."},
		{Name: "Messages", Description: "What is known of a message or an order."},
		{Name: "Reconcile", Description: "Whether log, dead letters and stock agree."},
		{Name: "Acts", Description: "What people and programs do, and did."},
	}
}

// words explain the properties of the types that are other packages' own, by the names that these have in the
// description. A test holds that no property lacks its words.
var words = map[string]map[string]string{
	"Group": {
		"filter":  "Chooses these letters in POST /runs. Missing: no filter does, as of errors that are all different.",
		"letters": "The latest of them; of a group that is asked for by its id.",
	},
	"Overview": {"troubles": "The last trouble of each dependency, queue and brake, the latest first."},
	"Sample": {
		"lag_seconds": "99th percentile from publishing to the committed effect, of what ended since the sample before. " +
			"Missing: nothing did.",
		"ready": "Messages that wait, by the kind of queue: main, retry, backstop, dead. One that nobody could look at is " +
			"missing.",
		"dead_rows": "Dead rows of the log, counted up to a bound. Missing: nobody could count them yet.",
	},
	"RunRequest": {
		"kind":    "replay puts them back to work, discard ends them without an effect.",
		"cut_off": "The at of the preview: what died later is not of the run. Missing: now.",
		"rate":    "Of a replay: letters a second at most; 0: as many as can be.",
		"window":  "Of a replay: how many replayed letters may wait for the daemons at a time. Missing: 500.",
		"max_failures": "Of a replay: ends the run when so many of its letters have failed again. 0: they are only " +
			"counted.",
	},
	"PauseRequest":  {"instead": "The id of the pause that this one replaces. Missing: none may stand."},
	"ResumeRequest": {"pause": "The id of the pause that is to end. Missing: whichever stands."},
	"Readiness": {
		"ready": "Everything is reachable and deliveries are taken.", "draining": "A stop was asked for.",
		"waiting": "What is missing or paused, each with its reason.", "group": "The kind of consumer.",
		"degraded": "What is amiss while deliveries are taken all the same.", "queue": "The main queue.",
	},
	"Letter": letterWords,
	"Shown": with(letterWords, map[string]string{
		"message_id":  "As its producer named it.",
		"properties":  "AMQP properties, as in the dead-letter queue; null when they may not be seen.",
		"headers":     "AMQP headers, as in the dead-letter queue; null when they may not be seen.",
		"headers_cut": "The log keeps not all of them.", "body": "When it is UTF-8.", "body_base64": "When it is not.",
		"body_cut": "The log keeps the beginning of the body only.", "events": "Its story, the oldest step first.",
	}),
	"ShownEvent": {
		"at": "By the database's clock.", "from": "Status before.", "to": "Status after.",
		"attempt": "The row's attempts after the step.", "replays": "How often it had been reopened.",
		"by": "A person, or the worker.", "error": "What went wrong.",
	},
	"Judged": with(letterWords, map[string]string{
		"status": "Of the row; empty when there is none.",
		"verdict": "What would become of it: will_run, done, discarded, in_progress, parked, later (it died after the set " +
			"was frozen), from_queue (its row keeps too little, so it is looked for in the queue), too_old (nothing is known " +
			"of the key) or stays.",
	}),
	"Preview": {
		"at":      "Freezes the set: hand it to POST /runs as cut_off.",
		"filter":  "What was asked for, with the keys of an order.",
		"matched": "Letters of the set, as far as they were counted.",
		"parked":  "Of them, those that stay without force.", "more": "There are more than were counted.",
		"letters": "A page of the set, the latest first; with keys in the filter, all rows of these keys in whatever state.",
		"totals":  "Counts the page by verdict.", "next": "Give it as after, with at, for the next page.",
	},
	"Filter": {
		"all":  "All letters: must be true to choose without any other condition.",
		"keys": "One of these keys, 1,000 at most.", "tag": "The kind of message.",
		"order":   "The number of an order; ROLLBACKD_HANDLER=stock only.",
		"reasons": "One of these reasons.", "since": "It died then or later.", "until": "It died before then.",
		"error":       "Its last error holds this text, letter by letter.",
		"fingerprint": "Its last error without what differs from letter to letter; a group of failures names it.",
		"body":        "Its body holds this text, letter by letter.",
		"sku":         "Its body names this sku_id, at whatever depth.",
	},
	"Told": {
		"order_sn": "The order's number, if one was asked for.", "reservations": "What the order has or had reserved.",
		"messages": "What is known, message by message.", "unseen": "What the answer may lack, and why.",
		"more": "Asked for with whole=true, the answer may be longer.",
	},
	"Explanation": {
		"group": "The kind of consumer.", "tag": "The kind of message.", "key": "Of the message.",
		"status": "absent, processing, success, failed, dead or discarded.", "reason": "Why it is dead.",
		"attempts": "Since the row was made or reopened.", "max_attempts": "How many are allowed.",
		"replays": "How often it was reopened.", "owner": "Of the last claim or replay.",
		"since": "The last transition, by the database's clock.", "created_at": "When the row was made.",
		"dead_at": "When it died, if it is dead.", "remark": "The last error, or who discarded it and why.",
		"message_id": "As its producer named it.", "body_sha256": "Of its body, in hexadecimal.", "body": "When it is UTF-8.",
		"body_hex": "When it is not.", "properties": "AMQP properties and headers, as JSON in a text.",
		"filed_for": "The original key of a conflict, or of what could not be identified.",
		"lock":      "Who holds its lock, in words.", "copies": "In the dead-letter queue, in words.",
		"story": "The oldest step first.", "means": "What its state means, in words.", "next": "What to do, in words.",
		"reservations": "Of its order.",
	},
	"Reserved": {
		"order_sn": "The order's number.", "sku_id": "The goods.", "quantity": "How many.",
		"status": "reserved, released, confirmed or refused.", "since": "The last change.",
		"rollback_tag": "Of the message that released or refused it.",
		"rollback_key": "Of the message that released or refused it.",
	},
	"Step": {
		"at": "By the database's clock.", "what": "In words.", "from": "Status before.", "to": "Status after.",
		"attempt": "The row's attempts after the step.", "replays": "How often it had been reopened.",
		"owner": "Of the claim.", "by": "A person, or the message that changed a reservation.", "error": "What went wrong.",
	},
	"Act": {
		"id":    "Sorts by time.",
		"kind":  "replay, discard, pause, resume, reconcile, mend, compensate, prune, refused, or another.",
		"state": "running, done, stopped or failed. What takes no time is done, or failed, from the start.",
		"actor": "Who did it: the name of a token, or of a person whom a proxy vouches for with \"(proxy)\" behind it, " +
			"loopback without any of them, or user@host of a command.",
		"why":        "As the actor said, without control characters.",
		"cut_off":    "Freezes the set of a run: what died later is not of it.",
		"detail":     "What was asked for: of a run its kind, filter, cut_off, rate and more; of a pause its end.",
		"created_at": "By the database's clock.", "ended_at": "Missing: it goes on.", "stop_by": "Who asked the run to stop.",
		"owner": "The process that works on it; missing while none does.",
		"own":   "A command, or a daemon by itself, does it in its own process: no other one goes on with it.",
		"silent_seconds": "For how long that process has said nothing, although it should say something each second: it is " +
			"gone, or cannot reach MySQL. Missing: it works, or nobody has taken the act up.",
		"waits_for": "The acts that hold places while it waits for one; a daemon works on few at a time. An act in a list " +
			"does not have it.",
		"terms":    "How often a process took the run up: more than once when one died, drained, or waited for a server.",
		"progress": "How far a run is.",
		"sweeping": "The letters are done, and what is stale of them in the dead-letter queue is yet to be dropped.",
		"error":    "Why it failed.", "result": "What a run came to; missing while it goes on.",
	},
	"Holder": {
		"id": "Of the act.", "kind": "As of any act.", "actor": "Who did it.",
		"since": "When it was asked for, by the database's clock.", "owner": "The process that works on it.",
	},
	"Progress": {
		"phase":   "Of a run letters, or waiting; of other work what it looks at.",
		"matched": "Letters of the set, counted when it began.", "more": "There were more.",
		"done": "Replayed or discarded.", "left": "Chosen, and stay.", "waiting": "Replayed, without an outcome.",
		"applied": "Their effect is committed.", "failed_again": "An attempt failed again.",
		"trouble": "What the run waits for; missing while it goes on.",
	},
	"Result": {
		"replayed": "Rows reopened, messages confirmed.", "discarded": "Ended without an effect.",
		"applied":      "Of the replayed: their effect was committed until the end of the run, as far as it watched them.",
		"failed_again": "Of the replayed: an attempt failed.", "unsettled": "Of the replayed: nothing yet.",
		"swept":      "Stale letters that were dropped from the queue afterwards.",
		"left_count": "Chosen, and stay.", "left_by": "Them, by why they stay.", "left": "The first of them.",
		"mended":    "Findings that reconcile --adopt or --republish has mended.",
		"deleted":   "Rows that log prune has deleted.",
		"report":    "What other work than a run over letters came to.",
		"by_reason": "The replayed or discarded, by why they were dead.",
	},
	"Problem":       problemWords,
	"ProblemDetail": {"message": "What is wrong.", "location": "Where, like query.limit or body.filter.reasons[0]."},
	"Left": {
		"tag": "The kind of message.", "key": "Of the message.", "reason": "Why it is dead.", "why": "Why it stays.",
		"error": "What went wrong.",
	},
}

// parameterWords explain those parameters whose words would not fit beside them.
var parameterWords = map[string]string{
	"kind":        "Only these: replay, discard, pause, resume, reconcile, mend, refused, or another kind that is listed.",
	"order":       "The number of an order: the letters of its messages. Known to ROLLBACKD_HANDLER=stock only.",
	"reason":      "One of these reasons why it is dead; may be repeated.",
	"fingerprint": "Its last error, without what differs from letter to letter, is this; a group of failures names it.",
	"limit":       "How many at most. A page may have less and still not be the last: only a missing next says so.",
	"whole": "Look through more rows where no index leads to them: up to 100,000 and 20 seconds, instead of 1,000 at " +
		"once. An answer whose more is true may be longer then.",
	"Idempotency-Key": "A name of this request that you choose, such as a new UUID; yours alone, whoever else uses it. " +
		"Send the request again under the same key, and it is done once.",
	"Idempotency-Replayed": "true: this was done before, under the same key; the answer is that one.",
}

var problemWords = map[string]string{
	"type": "Left out: the status says what kind it is.", "title": "The status in words.", "status": "Of the answer.",
	"detail":   "What is wrong, and what to do, in a sentence.",
	"instance": "The address of what is in the way, for example the act that goes on.",
	"errors":   "What is wrong, part by part of the request.",
}

var letterWords = map[string]string{
	"group": "The kind of consumer.", "tag": "The kind of message.", "key": "Of the message.",
	"reason": "Why it is dead: malformed, unidentified, conflict, permanent, exhausted, crashed, delivery_limit, " +
		"effect_unknown, or one of a later version.",
	"attempts": "Since the row was made or reopened.", "replays": "How often it was reopened.",
	"dead_at": "By the database's clock.", "created_at": "When its row was made.", "remark": "The last error.",
	"body_sha256": "Of its body, in hexadecimal.",
	"parked":      "Replayed as often as is allowed: only force replays it.",
}

func with(some, more map[string]string) map[string]string {
	all := maps.Clone(some)
	maps.Copy(all, more)
	return all
}

// explain adds what the types do not say of themselves: words, and the words that a parameter may have. Requests are
// held against it, so it comes before the first of them.
func explain(document *huma.OpenAPI) {
	schemas := document.Components.Schemas.Map()
	for name, s := range schemas {
		if !asked(name) {
			s.AdditionalProperties = nil // a later version may say more; what is asked for must be understood
		}
		for property, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // a list without items is []
			}
			if text := words[name][property]; text != "" {
				p.Description = text
			}
		}
	}
	if f := schemas["Filter"]; f != nil {
		limit := dedup.MaxListedKeys
		f.Properties["keys"].MaxItems = &limit
		f.Properties["reasons"].Items.Enum = reasons()
		for name, most := range map[string]int{
			"tag": dedup.MaxTag, "order": dedup.MaxKey, "error": dedup.MaxRemark, "fingerprint": dedup.MaxRemark,
			"body": dedup.MaxRemark,
		} {
			f.Properties[name].MaxLength = &most
		}
		longest := dedup.MaxKey
		f.Properties["keys"].Items.MaxLength = &longest
	}
	for name, properties := range anything {
		for _, property := range properties {
			p := schemas[name].Properties[property]
			p.Type, p.Nullable, p.AdditionalProperties = huma.TypeObject, true, true
		}
	}
	if e := schemas["Problem"]; e != nil {
		e.Properties["instance"].Format = "uri-reference"
		e.Properties["type"].Default = nil                   // it is left out
		delete(schemas["ProblemDetail"].Properties, "value") // nothing of what was sent is repeated
		for _, p := range e.Properties {
			p.Examples = nil // the library's, of other programs
		}
	}
	for _, path := range document.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Post} {
			if op != nil {
				explainOperation(op)
			}
		}
	}
	for _, s := range schemas {
		s.PrecomputeMessages()
	}
}

func explainOperation(op *huma.Operation) {
	for _, p := range op.Parameters {
		if p.Description == "" {
			p.Description = parameterWords[p.Name]
		}
		switch p.Name {
		case "reason":
			p.Schema.Items.Enum = reasons()
		case "status":
			p.Schema.Items.Enum = statuses()
		}
		p.Schema.Description, p.Schema.Nullable = "", false
		p.Schema.PrecomputeMessages()
	}
	for _, r := range op.Responses {
		for name, h := range r.Headers {
			if h.Description == "" {
				h.Description = parameterWords[name]
			}
		}
	}
}

// anything are properties that are an object of whatever is in it, or null.
var anything = map[string][]string{"Shown": {"properties", "headers"}, "Act": {"detail"}, "Result": {"report"}}

// asked reports whether a schema is part of a request.
func asked(name string) bool { return name == "Filter" || strings.HasSuffix(name, "Request") }

// named is the name of a type in the description: the library's own errors have that of RFC 9457.
func named(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	switch name {
	case "ErrorModel":
		return "Problem"
	case "ErrorDetail":
		return "ProblemDetail"
	}
	return name
}

func reasons() (all []any) {
	for _, r := range dedup.Reasons() {
		all = append(all, string(r))
	}
	return all
}

func statuses() (all []any) {
	for _, s := range dedup.Statuses() {
		all = append(all, s.String())
	}
	return all
}
