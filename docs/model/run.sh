#!/bin/bash
# run.sh [PATTERN]: every check of README.md, or those whose name or model matches, one line each; exit 1 if one that must
# hold does not, one that must fail does not, or one is not finished. One core, up to 4 GB, 10 to 25 minutes. PATTERN is
# an extended regular expression for the whole name: ./run.sh 'group.pml', ./run.sh 'M_FORGIVE.*'.
cd "$(dirname "$0")" || exit 2
only=${1:-.*}; wrong=0
model() { export MODEL=$1; }
holds() { check 0 "$@"; }
fails() { OPT=-O1 check 1 "$@"; } # found at once: the compiler takes longer
check() {
  local want=$1; shift
  [[ $1 =~ ^($only)$ || $MODEL =~ ^($only)$ ]] || return
  ./one.sh "$@"; local got=$?
  [ $got = "$want" ] || { echo "^^^ NOT AS IT SHOULD BE: $1 of $MODEL"; wrong=1; }
}

model rollbackd.pml
holds all-faults      -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=1
COLLAPSE=1 holds replayers2 -DNR=2 -DRTOK=2 -DCRASH=1 -DUNK=0 -DPAUSES=0
holds three-copies    -DCOPIES=3 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds session-dlimit  -DSLOST=1 -DDLIM=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds max3            -DMAX=3 -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds pauses2         -DCRASH=0 -DUNK=1 -DPAUSES=2 -DRTOK=1
holds moved           -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
holds moved-max3      -DMTOK=1 -DMAX=3 -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=0
holds discard         -DDTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=1
holds prune           -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=1
holds unclaim         -DINFRA=1 -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=0
holds put-off         -DSNOOZE=2 -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=0
holds put-off-replay  -DSNOOZE=1 -DMAX=3 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds two-ids         -DNID=2 -DCOPIES=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds two-ids-dup     -DNID=2 -DCOPIES=2 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
holds refused         -DREF=2 -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=0
holds refused-replay  -DREF=2 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
holds refused-moved   -DREF=2 -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
holds adopt-refused   -DADOPT=1 -DREF=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
holds adopt-old       -DADOPT=1 -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
F="-DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=1"
for m in M_ACK_EARLY M_NO_UNIQUE M_NO_CAS M_NO_STATUS M_STATUS_ONLY M_TIMES_ONLY M_NO_DUE M_ACK_WAITING; do
  fails $m -D$m $F
done
fails M_CLAIM_EARLY      -DM_CLAIM_EARLY -DSNOOZE=1 -DCRASH=0 -DUNK=0 -DPAUSES=0 -DRTOK=0
fails M_NO_EXHAUST       -DM_NO_EXHAUST -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=0
for m in M_MARK_FIRST M_DONE_EARLY M_MARKER_ENDS M_REPLAY_NO_REOPEN M_REPLAY_PUBLISH M_REPLAY_SKIP; do
  fails $m -D$m $F
done
fails M_PRUNE_BLIND      -DPRUNE -DM_PRUNE_BLIND -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
fails M_LETTER_FORGOT    -DM_LETTER_FORGOT -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
for m in M_NO_REASON M_REASON_IGNORED M_CONDEMN_NO_CAS M_ACK_PAST; do
  fails $m -D$m -DREF=2 -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=0
done
fails M_HELD_FORGOT      -DM_HELD_FORGOT -DREF=1 -DMTOK=1 -DCRASH=0 -DUNK=0 -DPAUSES=0 -DRTOK=0
fails M_BLAMED_OVER      -DM_BLAMED_OVER -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
fails M_ADOPT_OVER       -DM_ADOPT_OVER -DADOPT=1 -DREF=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
fails M_ADOPT_OLD        -DM_ADOPT_OLD -DADOPT=1 -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
for m in M_AGAIN_BLIND M_COUNTED_BLIND; do fails $m -D$m -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1; done
fails M_AGAIN_EARLY      -DM_AGAIN_EARLY -DSNOOZE=1 -DCRASH=0 -DUNK=0 -DPAUSES=0 -DRTOK=0

model group.pml
holds group-crash        -DCRASH=1
holds group-unknown      -DCRASH=0 -DUNK=1
holds group-copies       -DCRASH=1 -DCOPIES=2
holds group-fast         -DCRASH=1 -DUNK=1 -DINFRA=1
holds group-claims       -DCRASH=1 -DUNK=1 -DPAUSES=1 -DINFRA=1 -DSTART=2
holds group-replay       -DCRASH=1 -DRTOK=1
holds group-perm         -DPERM -DCRASH=1 -DPAUSES=1
holds group-last         -DCRASH=2 -DCOPIES=2 -DSTART=2
holds group-last-unknown -DCRASH=2 -DUNK=1 -DSTART=2
G="-DCRASH=1 -DUNK=1 -DPAUSES=1 -DINFRA=1 -DCOPIES=2"
for m in M_BLAMED_OVER M_BLAMED_COUNTS M_BLAME_EARLY M_CLAIM_TIMES M_TX_BLIND M_UNCLAIM_BLIND M_UNCLAIM_OWNER \
         M_UNCLAIM_KEEPS M_FAIL_BLIND M_UNKNOWN_DONE; do
  fails $m -D$m $G
done
fails M_CLAIMS_FORGOTTEN -DM_CLAIMS_FORGOTTEN -DCRASH=0 -DINFRA=1 -DSTART=2
fails M_COPIES_AT_ONCE   -DM_COPIES_AT_ONCE $G
for m in M_NO_FORGIVE M_FORGIVE_ALWAYS M_FORGIVE_BLIND M_CLAIM_MARKED; do
  fails $m -D$m -DCRASH=2 -DCOPIES=2 -DSTART=2
done

fails M_AGAIN_BLIND      -DM_AGAIN_BLIND -DCRASH=1 -DCOPIES=2 -DRTOK=1

model mended.pml
holds mended
holds mended-twice       -DDUPS=2 -DMENDS=2 -DMOVES=2 -DCRASH=2
fails M_MEND_FORGOT      -DM_MEND_FORGOT
fails M_MEND_BLIND       -DM_MEND_BLIND -DMENDS=2 -DCRASH=2

model edited.pml
holds edited
holds edited-twice       -DDUPS=2 -DEDITS=3 -DREPLAYS=2 -DMOVES=2 -DCRASH=2
for m in M_EDIT_APART M_EDIT_ENDS M_EDIT_BLIND; do
  fails $m -D$m
done

model taken.pml
holds taken
holds taken-more         -DCOPIES=2 -DPASSES=3
for m in M_INSERT_OVER M_BLIND M_LAST_EARLY M_LAST_RESUMED M_DECIDE_EARLY; do fails $m -D$m; done

model ended.pml
holds ended
holds ended-more         -DN=5 -DCRASH=2 -DFAILS=2 -DCOPIES=3
for m in M_NO_GUARD M_FAST_CALL M_NO_PROOF M_UNKNOWN_AGAIN M_DIES; do fails $m -D$m; done

model poison.pml
holds poison             -DMAX=5
holds poison-fails       -DMAX=3 -DQFAIL=2
holds poison-back        -DMAX=3 -DQFAIL=2 -DUNC=1
holds poison-kill        -DMAX=3 -DQFAIL=2 -DKILL=1
holds poison-copies      -DMAX=3 -DQFAIL=2 -DCOPIES=2
holds poison-calls       -DMAX=3 -DQFAIL=2 -DCALLS -DUNC=1 -DKILL=1
holds poison-once        -DMAX=1 -DKILLS=4
holds poison-replay      -DMAX=3 -DQFAIL=2 -DREOPEN=1
for m in M_NO_FORGIVE M_GROUP_UNMARKED M_SINGLE_UNMARKED M_MARKED_BESIDE M_TAKEN_UNMARKED M_TAKEN_ALONE; do
  fails $m -D$m -DMAX=3 -DQFAIL=2
done
fails M_GROUP_UNMARKED_CALLS -DM_GROUP_UNMARKED -DCALLS -DMAX=3 -DQFAIL=2
fails M_FORGIVE_ALWAYS   -DM_FORGIVE_ALWAYS -DMAX=3 -DFORGIVES=99
fails M_OPEN             -DM_OPEN -DMAX=3 -DQFAIL=1 -DUNC=1
for m in M_SHARED M_TOGETHER M_ALWAYS_FAST; do fails $m -D$m -DMAX=3; done
fails M_AGAIN_FAST       -DM_AGAIN_FAST -DMAX=3 -DQFAIL=1 -DREOPEN=1
fails M_UNMARKED         -DM_UNMARKED -DMAX=3 -DUNC=1

model outbox.pml
holds outbox
holds outbox-three       -DNW=3
holds outbox-more        -DFAULTS=3 -DRET=2
for m in M_PUT_ANY M_PUT_OVER M_PUT_LOOKED M_CANCEL_BLIND M_CANCEL_LOOKED M_TOMB_STAYS M_CLAIM_BLIND M_SAME_NAME \
         M_PUBLISH_FIRST M_DELETE_EARLY M_NO_LEASE M_LEASE_NEVER M_NO_MANDATORY M_NACK_SURE M_AGAIN_SURE \
         M_RETURN_SURE M_RETURN_BLIND M_DELETE_BLIND M_RETRY_NULL M_CONFIRM_BLIND M_RELEASE_BLIND M_NO_LOG \
         M_EVENT_APART; do
  fails $m -D$m
done
exit $wrong
