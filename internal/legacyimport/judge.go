package legacyimport

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
)

// reservedTags begins the tags of rollbackd's own.
const reservedTags = "rollbackd."

const (
	// futureSlack is how far a clock may be wrong before a time counts as one of the future.
	futureSlack = time.Minute
	// Between these a time is so far ahead as a wrong zone makes it, and hardly a wrong clock. No two zones are further
	// from each other.
	leastZone, mostZone = 10 * time.Minute, 26 * time.Hour
)

// candidate is what an old row asks for.
type candidate struct {
	old    *oldRow
	fate   Kind   // why it is not taken; "" when it may be
	why    string // more about that
	odd    []Kind
	taken  dedup.Taken // but for From, Body and Properties
	hasAt  bool        // At is known
	length int64       // of the body
}

// read is pure: it says what an old row means. Now is the database's time.
func (o *Options) read(s *shape, old *oldRow, now time.Time) candidate {
	c := candidate{old: old, length: old.bodyLength.Int64}
	if old.group == nil || old.tag == nil || old.key == nil {
		c.fate = NullName
		return c
	}
	group, mapped := o.Groups[string(old.group)]
	if !mapped && string(old.group) != o.Group {
		c.fate = OtherName
		return c
	}
	id := dedup.Identity{Group: cmp.Or(group, o.Group), Tag: string(old.tag), Key: string(old.key)}
	if tag, ok := o.Tags[id.Tag]; ok {
		id.Tag = tag
	}
	if c.fate, c.why = refusal(id); c.fate != "" {
		return c
	}
	c.taken = dedup.Taken{
		Entry: dedup.Entry{Identity: id, MessageID: string(old.id)}, Status: dedup.Dead, Origin: s.origin(old), By: o.By,
	}
	status := c.readStatus()
	c.readTimes(s.has(colTimes))
	c.readTime(o.zone(), now, s)
	if keeps := o.Retention; keeps > 0 && c.hasAt && c.taken.Status == dedup.Success && now.Sub(c.taken.At) > keeps {
		c.note(Outlived)
	}
	c.readBody(o.NoBodyHash, s.has(colBody))
	if c.taken.Status == dedup.Dead {
		c.taken.Remark = c.remark(s.name(), status)
	}
	return c
}

func refusal(id dedup.Identity) (Kind, string) {
	err := id.Validate()
	switch {
	case strings.HasPrefix(id.Tag, reservedTags):
		return ReservedTag, "its tag is reserved"
	case err == nil:
		return "", ""
	case len(id.Group) > dedup.MaxGroup, len(id.Tag) > dedup.MaxTag, len(id.Key) > dedup.MaxKey:
		return TooLong, flaw(err)
	}
	return Unusable, flaw(err)
}

func flaw(err error) string { return strings.TrimPrefix(err.Error(), dedup.ErrIdentity.Error()+": ") }

func (c *candidate) note(k Kind) { c.odd = append(c.odd, k) }

// readStatus returns the status in words.
func (c *candidate) readStatus() string {
	switch s := c.old.status; {
	case !s.Valid:
		c.note(StatusNull)
		return "no status"
	case s.String == "1":
		c.taken.Status = dedup.Success
		return ""
	case s.String == "0":
		return "status 0, in progress"
	case s.String == "2":
		return "status 2, failed"
	default:
		c.note(StatusOther)
		return "status " + s.String
	}
}

func (c *candidate) readTimes(there bool) {
	n, err := strconv.ParseInt(c.old.times.String, 10, 64)
	switch {
	case !there:
		return
	case !c.old.times.Valid, errors.Is(err, strconv.ErrSyntax), err == nil && n < 0:
		c.note(OddTimes)
		return
	case err != nil: // out of range
		n = math.MaxInt32
	}
	if c.taken.Attempts = n; n > MaxTimes {
		c.note(ManyTimes)
	}
}

// readTime reads a date and time in the zone, or seconds, milliseconds or microseconds since 1970.
func (c *candidate) readTime(zone *time.Location, now time.Time, s *shape) {
	if !s.has(colTime) {
		return
	}
	at, err := parseTime(c.old.time.String, zone)
	switch {
	case err != nil:
		c.note(NoTime)
	case at.After(now.Add(leastZone)) && at.Before(now.Add(mostZone)) && !s.columns[colTime].isInteger():
		c.note(OtherZone)
	case at.After(now.Add(futureSlack)):
		c.note(FutureTime)
	default:
		c.taken.At, c.hasAt = at, true
	}
}

func parseTime(text string, zone *time.Location) (time.Time, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.ParseInLocation("2006-01-02 15:04:05.999999", text, zone)
	}
	switch {
	case n <= 0:
		return time.Time{}, errors.New("no time")
	case n < 1e11:
		return time.Unix(n, 0), nil
	case n < 1e14:
		return time.UnixMilli(n), nil
	}
	return time.UnixMicro(n), nil
}

func (c *candidate) readBody(noHash, there bool) {
	if c.taken.Status == dedup.Dead && c.length > dedup.MaxBody {
		c.note(CutBody)
	}
	switch {
	case !there:
	case !c.old.bodyLength.Valid:
		c.note(NoBody)
	case noHash:
	case c.old.doubtful || len(c.old.hash) != sha256.Size:
		c.note(DoubtfulBody)
	default:
		c.taken.BodyHash = [sha256.Size]byte(c.old.hash)
	}
}

// maxOldRemark is how much of the old remark is kept: with what stands before it no more than the column holds, so that
// a later pass finds it as it is.
const maxOldRemark = 600

func (c *candidate) remark(table, status string) string {
	text := fmt.Sprintf("%s left it open: %s, tried %d times", table, status, max(0, c.taken.Attempts))
	if c.hasAt {
		text += ", at " + c.taken.At.UTC().Format(time.RFC3339)
	}
	if last := strings.TrimSpace(strings.ToValidUTF8(string(c.old.remark), "\uFFFD")); last != "" {
		if runes := []rune(last); utf8.RuneCountInString(last) > maxOldRemark {
			last = string(runes[:maxOldRemark]) + "…"
		}
		text += ": " + last
	}
	return text
}

// origin tells a row from all others of all tables. It has 32 bytes.
func (s *shape) origin(old *oldRow) string {
	h := sha256.New()
	for _, part := range append([][]byte{[]byte(s.database), []byte(s.table)}, old.at...) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// decide is pure: a candidate and our row in, what becomes of the old row out. Write says whether our row changes.
func decide(c *candidate, ours dedup.Row) (fate Kind, write bool) {
	success := c.taken.Status == dedup.Success
	if ours.Status == dedup.Absent {
		if success {
			return Success, true
		}
		return Open, true
	}
	if !ours.TakenOver() {
		return besideOurs(success, ours), false
	}
	same := ours.Origin() == c.taken.Origin
	switch {
	case ours.Status == dedup.Dead && success:
		return Settled, true
	case !same:
		return Merged, false
	case ours.Status == dedup.Success && !success:
		return WentBack, false
	case success, ours.Remark == c.taken.Remark && bytesKnown(ours.BodyHash, c.taken.BodyHash):
		return There, false
	}
	return Renewed, true
}

// bytesKnown reports whether our row knows as much of the body as the old one tells.
func bytesKnown(ours []byte, old [sha256.Size]byte) bool {
	return old == [sha256.Size]byte{} || bytes.Equal(ours, old[:]) || len(ours) > 0
}

// besideOurs is what becomes of an old row whose identity has a row that rollbackd, or a person, has written or moved.
func besideOurs(success bool, ours dedup.Row) Kind {
	switch {
	case !success, ours.Status == dedup.Discarded:
		return Ours
	case ours.Status == dedup.Success:
		return BothApplied
	}
	return UnderWay
}

// Kind says what became of a row, or what is odd about it. A row has one fate and any number of oddities.
type Kind string

// class is what a kind means for whoever reads a report.
type class int

const (
	fate        class = iota // what became of a row
	contradicts              // a fate that a person must look at: two logs disagree about an effect
	refused                  // the fate of a row that rollbackd can have none of
	odd                      // of a row that was taken over
)

// Told is a kind with its words for a person.
type Told struct {
	Kind  Kind
	Means string
	class class
}

// Odd reports whether the kind is no fate.
func (t Told) Odd() bool { return t.class == odd }

// Kinds are all of them, in the order of a report.
var Kinds []Told

func kind(name Kind, c class, means string) Kind {
	Kinds = append(Kinds, Told{name, means, c})
	return name
}

// MaxTimes is how often the classic consumer tries at most.
const MaxTimes = 5

// The fates.
var (
	Success = kind("success", fate, "success there, success here: a later delivery is a duplicate")
	Open    = kind("open", fate, "left open there (status 0 or 2): filed as dead, effect_unknown")
	Settled = kind("settled", fate, "filed as dead by an earlier pass, success there by now: success")
	Renewed = kind("renewed", fate, "filed as dead by an earlier pass, moved there since, still open: remark and times "+
		"renewed")
	There       = kind("there", fate, "as an earlier pass took it over")
	Merged      = kind("merged", fate, "has the identity of another old row, by the names that were given: success wins")
	Ours        = kind("ours", fate, "rollbackd, or a person, has moved its row: that decides")
	OtherName   = kind("other_name", fate, "of other groups: left alone")
	BothApplied = kind("both_applied", contradicts, "success there, and applied by rollbackd too: the effect may be "+
		"there twice. Look")
	UnderWay = kind("under_way", contradicts, "success there, and rollbackd has it under way, or dead: discard it, or "+
		"the effect comes twice")
	WentBack = kind("went_back", contradicts, "was success there at an earlier pass, and is not any more: it stays "+
		"success here. Look")
	NullName = kind("null_name", refused, "refused: group, tag or key is NULL. No delivery can have such a name")
	TooLong  = kind("too_long", refused, "refused: group, tag or key is too long. Such a delivery is unidentified, and "+
		"has no effect")
	Unusable = kind("unusable", refused, "refused: an empty name, no UTF-8, a control character. Such a delivery is "+
		"unidentified")
	ReservedTag = kind("reserved_tag", refused, "refused: tags that begin with rollbackd. are its own. Such a delivery "+
		"is unidentified")
)

// The oddities.
var (
	StatusNull  = kind("status_null", odd, "no status: taken for left open")
	StatusOther = kind("status_other", odd, "a status that is none of 0, 1 and 2: taken for left open")
	OddTimes    = kind("odd_times", odd, "no number of times, or a negative one: 0, for a success 1")
	ManyTimes   = kind("many_times", odd, "tried more than 5 times: taken over as it is")
	NoTime      = kind("no_time", odd, "no time: as of now")
	FutureTime  = kind("future_time", odd, "a time in the future: as of now")
	OtherZone   = kind("other_zone", odd, "a time up to 26 hours in the future: as of now. Is --time-zone right?")
	Outlived    = kind("outlived", odd, "older than ROLLBACKD_LOG_RETENTION: the daemon deletes it, and then a copy is "+
		"new")
	NoBody = kind("no_body", odd, "no body: no hash, so a delivery with any body is a copy")
	// DoubtfulBody is of a column that may not hold all bytes.
	DoubtfulBody = kind("doubtful_body", odd, "a body that may be cut or changed: no hash, so a delivery with any body "+
		"is a copy")
	CutBody = kind("cut_body", odd, "left open, with a body over 256 KiB: the log keeps its beginning; it cannot be sent "+
		"from here")
	NoMessage = kind("no_message", odd, "left open, and no message with its identity can be made of it: it cannot be "+
		"sent from here")
)

func (k Kind) is(c class) bool {
	for _, t := range Kinds {
		if t.Kind == k {
			return t.class == c
		}
	}
	return false
}

// named reports whether a report names each row of this kind.
func (k Kind) named() bool { return k.is(contradicts) || k.is(refused) || k == Merged }
