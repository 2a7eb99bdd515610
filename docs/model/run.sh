#!/bin/bash
# run.sh [1|2|3]: every check of README.md, one line each (part 1 and 2: must hold; part 3: must fail). About 20 minutes
# on two cores when part 1 and part 2 run side by side; each search stays under 4 GB.
cd "$(dirname "$0")" || exit 2
run() { ./one.sh "$@"; }
part1() {
  TMO=900 run all-faults -DCRASH=2 -DUNK=1 -DPAUSES=1 -DRTOK=1
  run three-copies    -DCOPIES=3 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
}
part2() {
  run replayers2      -DNR=2 -DRTOK=2 -DCRASH=1 -DUNK=0 -DPAUSES=0
  run session-dlimit  -DSLOST=1 -DDLIM=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run max3            -DMAX=3 -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run pauses2         -DCRASH=0 -DUNK=1 -DPAUSES=2 -DRTOK=1
  run moved           -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run moved-max3      -DMTOK=1 -DMAX=3 -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run discard         -DDTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=1
  run prune           -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=1
  run unclaim         -DINFRA=1 -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=0
  run two-ids         -DNID=2 -DCOPIES=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run two-ids-dup     -DNID=2 -DCOPIES=2 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run refused         -DREF=2 -DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=0
  run refused-replay  -DREF=2 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run refused-moved   -DREF=2 -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run adopt-refused   -DADOPT=1 -DREF=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run adopt-old       -DADOPT=1 -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  MODEL=group.pml run group-crash    -DCRASH=1
  MODEL=group.pml run group-unknown  -DCRASH=0 -DUNK=1
  MODEL=group.pml run group-copies   -DCRASH=1 -DCOPIES=2
  MODEL=group.pml run group-claims   -DCRASH=1 -DUNK=1 -DPAUSES=1 -DINFRA=1 -DSTART=2
  MODEL=group.pml run group-fast     -DCRASH=1 -DUNK=1 -DINFRA=1
  MODEL=group.pml run group-replay   -DCRASH=1 -DRTOK=1
  MODEL=group.pml run group-perm     -DPERM -DCRASH=1 -DPAUSES=1
  MODEL=mended.pml run mended
  MODEL=mended.pml run mended-twice  -DDUPS=2 -DMENDS=2 -DMOVES=2 -DCRASH=2
  MODEL=taken.pml run taken
  MODEL=taken.pml run taken-more     -DCOPIES=2 -DPASSES=3
  MODEL=poison.pml run poison        -DMAX=5
  MODEL=poison.pml run poison-shut   -DQFAIL=1 -DSHUT
}
part3() {
  F="-DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=1"
  for m in M_ACK_EARLY M_NO_UNIQUE M_NO_CAS M_REPLAY_NO_REOPEN M_TIMES_ONLY M_STATUS_ONLY M_NO_STATUS \
           M_REPLAY_SKIP M_REPLAY_PUBLISH M_NO_DUE M_ACK_WAITING M_MARK_FIRST M_DONE_EARLY M_MARKER_ENDS; do run $m -D$m $F; done
  run M_NO_EXHAUST -DM_NO_EXHAUST -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run M_PRUNE_BLIND -DPRUNE -DM_PRUNE_BLIND -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run M_LETTER_FORGOT -DM_LETTER_FORGOT -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  R="-DREF=2 -DCRASH=1 -DUNK=0 -DPAUSES=1 -DRTOK=0"
  for m in M_REASON_IGNORED M_NO_REASON M_CONDEMN_NO_CAS M_ACK_PAST; do run $m -D$m $R; done
  run M_HELD_FORGOT -DM_HELD_FORGOT -DREF=1 -DMTOK=1 -DCRASH=0 -DUNK=0 -DPAUSES=0 -DRTOK=0
  G="-DCRASH=1 -DUNK=1 -DPAUSES=1 -DINFRA=1 -DCOPIES=2"
  for m in M_BLAMED_OVER M_BLAMED_COUNTS M_BLAME_EARLY M_CLAIM_TIMES M_TX_BLIND M_UNCLAIM_BLIND M_UNCLAIM_OWNER \
           M_UNCLAIM_KEEPS M_UNKNOWN_DONE M_FAIL_BLIND M_COPIES_AT_ONCE; do MODEL=group.pml run $m -D$m $G; done
  MODEL=group.pml run M_CLAIMS_FORGOTTEN -DM_CLAIMS_FORGOTTEN -DCRASH=0 -DINFRA=1 -DSTART=2
  run M_BLAMED_OVER -DM_BLAMED_OVER -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run M_ADOPT_OVER -DM_ADOPT_OVER -DADOPT=1 -DREF=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run M_ADOPT_OLD -DM_ADOPT_OLD -DADOPT=1 -DPRUNE -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  MODEL=mended.pml run M_MEND_FORGOT -DM_MEND_FORGOT
  MODEL=mended.pml run M_MEND_BLIND -DM_MEND_BLIND -DMENDS=2 -DCRASH=2
  for m in M_INSERT_OVER M_BLIND M_LAST_EARLY M_LAST_RESUMED M_DECIDE_EARLY; do MODEL=taken.pml run $m -D$m; done
  MODEL=poison.pml run poison-open -DQFAIL=1 -DNP=2 -DMAX=3 -DCHARGES=9
}
case $1 in 1|2|3) part$1;; *) part1; part2; part3;; esac
