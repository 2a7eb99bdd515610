package legacyimport

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	Named             // the row, and as its kind why it is not taken; "" when it may be
	at    [][]byte    // its primary key
	odd   []Kind      // what is odd about it
	taken dedup.Taken // but for From
}

// read is pure: it says what an old row means. Now is the database's time, and Zone is set.
func (o *Options) read(s *shape, row [][]byte, now time.Time) candidate {
	at, old := row[:len(s.primary)], row[len(s.primary):]
	c := candidate{at: at, Named: Named{Group: string(old[atGroup]), Tag: string(old[atTag]), Key: string(old[atKey])}}
	group, mapped := o.Groups[c.Group]
	id := dedup.Identity{Group: cmp.Or(group, o.Group), Tag: cmp.Or(o.Tags[c.Tag], c.Tag), Key: c.Key}
	err := id.Validate()
	switch {
	case old[atGroup] == nil || old[atTag] == nil || old[atKey] == nil:
		c.Kind = NullName
	case !mapped && c.Group != o.Group:
		c.Kind = OtherName
	case strings.HasPrefix(id.Tag, reservedTags):
		c.Kind, c.Why = ReservedTag, "its tag is reserved"
	case len(id.Group) > dedup.MaxGroup, len(id.Tag) > dedup.MaxTag, len(id.Key) > dedup.MaxKey:
		c.Kind, c.Why = TooLong, flaw(err)
	case err != nil:
		c.Kind, c.Why = Unusable, flaw(err)
	default:
		c.taken = dedup.Taken{Entry: dedup.Entry{Identity: id, MessageID: string(old[atID])}, Status: dedup.Dead,
			Origin: s.origin(at), By: o.By}
		o.readState(&c, s, old, now)
	}
	return c
}

func flaw(err error) string { return strings.TrimPrefix(err.Error(), dedup.ErrIdentity.Error()+": ") }

// readState reads what is more than names. Of what a column that the table lacks would say, the table's notes tell.
func (o *Options) readState(c *candidate, s *shape, old [][]byte, now time.Time) {
	t := &c.taken
	note := func(k Kind, of string) {
		if s.has(of) {
			c.odd = append(c.odd, k)
		}
	}
	is := string(old[atStatus])
	status := "status " + is
	switch {
	case old[atStatus] == nil:
		status = "no status"
		note(StatusNull, colStatus)
	case is == "1":
		t.Status = dedup.Success
	case is == "0":
		status += ", in progress"
	case is == "2":
		status += ", failed"
	default:
		note(StatusOther, colStatus)
	}

	times, err := strconv.ParseInt(string(old[atTimes]), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) || times < 0 {
		note(OddTimes, colTimes)
	} else if t.Attempts = times; times > MaxTimes {
		note(ManyTimes, colTimes)
	}

	at, err := parseTime(string(old[atTime]), o.Zone)
	switch ahead := at.Sub(now); {
	case err != nil:
		note(NoTime, colTime)
	case ahead > leastZone && ahead < mostZone && !s.columns[colTime].isInteger():
		note(OtherZone, colTime)
	case ahead > futureSlack:
		note(FutureTime, colTime)
	default:
		if t.At = at; o.Retention > 0 && t.Status == dedup.Success && ahead < -o.Retention {
			note(Outlived, colTime)
		}
	}

	switch hash := old[atHash]; {
	case hash == nil:
		note(NoBody, colBody)
	case o.NoBodyHash:
	case string(old[atDoubtful]) == "1":
		note(DoubtfulBody, colBody)
	default:
		t.BodyHash = [sha256.Size]byte(hash)
	}
	if t.Status != dedup.Dead {
		return
	}
	t.Body, t.Remark = old[atBody], remark(s.name(), status, *t, old[atRemark])
	if len(t.Body) > dedup.MaxBody {
		note(CutBody, colBody)
	} else if t.Body != nil && o.Remake != nil {
		t.Properties = o.Remake(t.Identity, t.Body, t.MessageID)
	}
}

// parseTime reads a date and time in the zone, or seconds, milliseconds or microseconds since 1970.
func parseTime(text string, zone *time.Location) (time.Time, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return time.ParseInLocation("2006-01-02 15:04:05.999999", text, zone)
	case n <= 0:
		return time.Time{}, errors.New("no time")
	case n < 1e11:
		return time.Unix(n, 0), nil
	case n < 1e14:
		return time.UnixMilli(n), nil
	}
	return time.UnixMicro(n), nil
}

// maxOldRemark is how much of the old remark is kept: with what stands before it no more than the column holds, so that
// a later pass finds it as it is.
const maxOldRemark = 600

func remark(table, status string, t dedup.Taken, old []byte) string {
	text := fmt.Sprintf("%s left it open: %s, tried %d times", table, status, t.Attempts)
	if !t.At.IsZero() {
		text += ", at " + t.At.UTC().Format(time.RFC3339)
	}
	last := strings.TrimSpace(strings.ToValidUTF8(string(old), "\uFFFD"))
	if runes := []rune(last); len(runes) > maxOldRemark {
		last = string(runes[:maxOldRemark]) + "…"
	}
	if last != "" {
		text += ": " + last
	}
	return text
}

// origin tells the row with a primary key from all others of all tables. It has 32 bytes.
func (s *shape) origin(at [][]byte) string {
	h := sha256.New()
	for _, part := range append([][]byte{[]byte(s.database), []byte(s.table)}, at...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// decide is pure: it says what becomes of a row that may be taken, beside ours.
func (c *candidate) decide(ours dedup.Row) Kind {
	success, moved := c.taken.Status == dedup.Success, !ours.TakenOver() // by somebody of ours
	knowsHash := len(ours.BodyHash) > 0 || c.taken.BodyHash == [sha256.Size]byte{}
	switch {
	case ours.Status == dedup.Absent && success:
		return Success
	case ours.Status == dedup.Absent:
		return Open
	case moved && (!success || ours.Status == dedup.Discarded):
		return Ours
	case moved && ours.Status == dedup.Success:
		return BothApplied
	case moved:
		return UnderWay
	case ours.Status == dedup.Dead && success:
		return Settled
	case ours.Origin() != c.taken.Origin:
		return Merged
	case ours.Status == dedup.Success && !success:
		return WentBack
	case success, ours.Remark == c.taken.Remark && knowsHash:
		return There
	}
	return Renewed
}

// Kind says what became of a row, or what is odd about it. A row has one fate and any number of oddities.
type Kind string

// class is what a kind means for whoever reads a report.
type class int

const (
	fate        class = iota // what became of a row
	written                  // a fate with which a row of ours is written
	contradicts              // a fate that a person must look at: two logs disagree about an effect
	refused                  // the fate of a row that rollbackd can have none of
	odd                      // of a row that was taken over
)

// Told is a kind with its words for a person.
type Told struct {
	Kind  Kind
	Means string
}

// Odd reports whether the kind is no fate.
func (t Told) Odd() bool { return t.Kind.is(odd) }

// Kinds are all of them, in the order of a report.
var Kinds []Told

var classes = map[Kind]class{}

func kind(name Kind, c class, means string) Kind {
	Kinds, classes[name] = append(Kinds, Told{name, means}), c
	return name
}

func (k Kind) is(c class) bool { return classes[k] == c }

// named reports whether a report names each row of this kind.
func (k Kind) named() bool { return k.is(contradicts) || k.is(refused) || k == Merged }

// MaxTimes is how often the classic consumer tries at most.
const MaxTimes = 5

// The fates.
var (
	Success = kind("success", written, "success there, success here: a later delivery is a duplicate")
	Open    = kind("open", written, "left open there (status 0 or 2): filed as dead, effect_unknown")
	Settled = kind("settled", written, "filed as dead by an earlier pass, success there by now: success")
	Renewed = kind("renewed", written, "filed as dead by an earlier pass, moved there since, still open: remark and "+
		"times renewed")
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
