package config

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// prefixes are compared as they are: they have no fields that another package could look into.
var prefixes = cmpopts.EquateComparable(netip.Prefix{})

// noSettings are the fields of the engine's Config that no setting gives a value, and that Config itself.
var noSettings = []string{
	"Config", "Fresh", "Migrate", "GiveBackAfter", "HoldLimit", "Notifier", "WithoutKeeper", "Observe", "Registerer",
	"Logger", "Hook", "MySQLTLS", "AMQPTLS", "RedisTLS", "TracerProvider",
}

// fieldValues are the settings' values by the names of their fields.
func fieldValues(c Config) map[string]any {
	values := make(map[string]any)
	add := func(all reflect.Value) {
		for field, value := range all.Fields() {
			if field.IsExported() && !slices.Contains(noSettings, field.Name) {
				values[field.Name] = value.Interface()
			}
		}
	}
	add(reflect.ValueOf(c))
	add(reflect.ValueOf(c.Config))
	for server, t := range map[string]certs.TLS{"amqp": c.tls.amqp, "mysql": c.tls.mysql, "redis": c.tls.redis} {
		values[server+" CA"], values[server+" Cert"], values[server+" Key"] = t.CA, t.Cert, t.Key
		values[server+" ServerName"] = t.ServerName
	}
	return values
}

func TestEveryVariableSetsAFieldOfItsOwnAndEveryFieldHasAVariable(t *testing.T) {
	var c Config
	setBy := make(map[string]string)
	for _, v := range variables(&c) {
		before := fieldValues(c)
		put, err := v.reads(v.Example)
		require.That(t, err == nil, "%s refuses its example: %v", v.Name, err)
		put()
		for name, value := range fieldValues(c) {
			if cmp.Equal(before[name], value, prefixes) {
				continue
			}
			assert.Is(t, setBy[name], "", "%s sets %s, which sets", v.Name, name)
			setBy[name] = v.Name
		}
	}
	// MAX_DEAD_RATE sets two
	if fields := len(fieldValues(c)); len(setBy) != fields || len(Variables()) != fields-1 {
		t.Errorf("%d variables set %d of %d fields: %v", len(Variables()), len(setBy), fields, setBy)
	}
}

func TestVariablesAreDescribed(t *testing.T) {
	for _, v := range Variables() {
		assert.That(t, v.Meaning != "" && v.Example != "" && (v.Range != "" || v.key == "DEAD_LETTER_WEBHOOK_SECRET"),
			"%s lacks a meaning, a range or an example: %+v", v.Name, v)
		assert.That(t, v.computed != nil || v.Default == "" || v.accepts(v.Default), "%s refuses its default %q", v.Name,
			v.Default)
		assert.Is(t, v.Required, (v.Default == "" && !v.empty), "%s: Required with default %q", v.Name, v.Default)
		assert.That(t, !strings.ContainsAny(v.Default+v.Range+v.Meaning, "\n"), "%s is described on several lines", v.Name)
	}
}

// Given each environment of testdata/load.txt, then Load says what stands below it. A line is the least environment
// with these settings besides, KEY="value", or without them, KEY. -update rewrites what is said.
func TestWhatLoadSays(t *testing.T) {
	golden.Says(t, "testdata/load.txt", func(line string) string {
		_, warnings, err := Load(environ(settingsOf(t, line)))
		said := []string{}
		for _, w := range warnings {
			said = append(said, "warning: "+w.String())
		}
		if bad, ok := errors.AsType[*Error](err); ok {
			for _, p := range bad.Problems {
				said = append(said, p.String())
				if !strings.HasPrefix(p.String(), p.Variable) || !strings.Contains(p.String(), ", for example "+p.Variable+"=") {
					t.Errorf("%s: problem %q does not name %s with an example", line, p, p.Variable)
				}
			}
		} else if len(warnings) == 0 {
			said = append(said, "ok")
		}
		for _, one := range said {
			assert.That(t, !strings.Contains(one, "\n") && !strings.Contains(one, "hunter2") && utf8.ValidString(one),
				"%s: %q is not one printable line without secrets", line, one)
		}
		return strings.Join(said, "\n")
	})
}

// settingsOf reads KEY="value" KEY …
func settingsOf(t *testing.T, line string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line != "" {
		key := line[:strings.IndexAny(line+" ", "= ")]
		line = line[len(key):]
		env[Prefix+key] = unset
		if rest, ok := strings.CutPrefix(line, "="); ok {
			quoted, err := strconv.QuotedPrefix(rest)
			require.That(t, err == nil, "%s: %v", line, err)
			env[Prefix+key], _ = strconv.Unquote(quoted)
			line = rest[len(quoted):]
		}
		line = strings.TrimSpace(line)
	}
	return env
}

func TestExamplesOfEveryVariableAreAccepted(t *testing.T) {
	for handler, others := range map[string]string{HandlerSQL: "ROLLBACKD_HTTP_T", HandlerHTTP: "ROLLBACKD_SQL_"} {
		all := make(map[string]string)
		for _, v := range Variables() {
			// those that warn that they have no effect, and one that the handler refuses
			if !strings.HasPrefix(v.Name, others) && v.key != "ZOOKEEPER_URL" && v.key != "EMIT" {
				all[v.Name] = v.Example
			}
		}
		all["ROLLBACKD_HANDLER"] = handler
		for _, url := range []string{"ROLLBACKD_AMQP_URL", "ROLLBACKD_REDIS_URL"} { // certificates want what is encrypted
			scheme, rest, _ := strings.Cut(all[url], "://")
			all[url] = scheme + "s://" + rest
		}
		load(t, all)
	}
}
