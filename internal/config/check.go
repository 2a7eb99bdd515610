package config

import (
	"slices"
	"strconv"
	"time"
)

// computeDefaults fills in the defaults that depend on other settings.
func (l *loader) computeDefaults() {
	if _, set := l.given["PREFETCH"]; !set && !l.bad["PREFETCH"] {
		l.cfg.Prefetch = 2 * l.cfg.BatchSize
		l.given["PREFETCH"] = given{raw: strconv.Itoa(l.cfg.Prefetch), from: FromDefault}
	}
}

// checkEach asks every setting's own rule.
func (l *loader) checkEach() {
	values := fieldValues(l.cfg)
	for _, v := range l.variables {
		g := l.given[v.key]
		if l.bad[v.key] || v.isZero(g.raw) || g.from == FromDefault && v.given {
			continue
		}
		if what := v.rule.check(g.raw, values[v.key]); what != "" {
			l.refuse(v.key, "%s", what)
		}
	}
}

// checkTogether compares settings with each other. A pair with a bad member is left alone: one mistake, one line.
func (l *loader) checkTogether() {
	good := func(keys ...string) bool {
		return !slices.ContainsFunc(keys, func(k string) bool { return l.bad[k] })
	}
	c := l.cfg
	if good("BATCH_SIZE", "PREFETCH") && c.Prefetch < c.BatchSize {
		l.refuse("PREFETCH", "is less than BATCH_SIZE (%d), so that no batch could fill: at least that is needed", c.BatchSize)
	}
	if good("LEASE", "HANDLER_TIMEOUT") && c.Lease <= c.HandlerTimeout {
		l.refuse("LEASE", "must be longer than HANDLER_TIMEOUT (%s), else a second worker takes over while the first one runs",
			shortDuration(c.HandlerTimeout))
	}
	if good("MAX_ATTEMPTS", "RETRY_DELAYS") && len(c.RetryDelays) < c.MaxAttempts-1 {
		l.refuse("RETRY_DELAYS", "has too few delays (%d): MAX_ATTEMPTS (%d) needs at least %d", len(c.RetryDelays), c.MaxAttempts, c.MaxAttempts-1)
	}
	if good("LOG_RETENTION", "RETRY_DELAYS") && c.LogRetention > 0 {
		var longest time.Duration
		for _, d := range c.RetryDelays {
			longest += d
		}
		if c.LogRetention <= longest {
			l.refuse("LOG_RETENTION", "must be longer than all RETRY_DELAYS together (%s), else a success row goes before its last copy",
				shortDuration(longest))
		}
	}
	if good("DEAD_LETTER_WEBHOOK", "DEAD_LETTER_WEBHOOK_SECRET") && c.DeadLetterWebhook == "" && c.DeadLetterWebhookSecret != "" {
		l.refuse("DEAD_LETTER_WEBHOOK_SECRET", "is set, but there is no DEAD_LETTER_WEBHOOK that it could sign: set both or none")
	}
}

// doubts are combinations that work, but hardly as meant.
func (l *loader) doubts() []Warning {
	var doubts []Warning
	if c := l.cfg; c.DrainTimeout < c.HandlerTimeout {
		doubts = append(doubts, Warning{Variable: Prefix + "DRAIN_TIMEOUT", What: "is shorter than HANDLER_TIMEOUT (" +
			shortDuration(c.HandlerTimeout) + "): a stop may cut a running handler off, its messages are then delivered again"})
	}
	const shortToken = 16
	if n := len(l.cfg.AdminToken); n > 0 && n < shortToken {
		doubts = append(doubts, Warning{Variable: Prefix + "ADMIN_TOKEN", What: "has fewer than " + strconv.Itoa(shortToken) +
			" characters: whoever guesses it can replay and discard messages"})
	}
	return doubts
}
