#!/bin/bash
# run.sh [1|2|3]: every check of README.md, one line each (part 1 and 2: must hold; part 3: must fail). About 10 minutes
# on two cores when part 1 and part 2 run side by side; each search stays under 4 GB.
cd "$(dirname "$0")" || exit 2
run() { ./one.sh "$@"; }
part1() {
  run all-faults      -DCRASH=2 -DUNK=1 -DPAUSES=1 -DRTOK=1
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
  MODEL=poison.pml run poison-alone   -DALONE
  MODEL=poison.pml run poison-alone-2 -DALONE -DNP=2
}
part3() {
  F="-DCRASH=1 -DUNK=1 -DPAUSES=1 -DRTOK=1"
  for m in M_ACK_EARLY M_NO_UNIQUE M_NO_CAS M_REPLAY_NO_REOPEN M_TIMES_ONLY M_STATUS_ONLY M_NO_STATUS \
           M_REPLAY_SKIP M_REPLAY_PUBLISH M_NO_DUE M_ACK_WAITING M_MARK_FIRST M_DONE_EARLY; do run $m -D$m $F; done
  run M_NO_EXHAUST -DM_NO_EXHAUST -DCRASH=2 -DUNK=0 -DPAUSES=0 -DRTOK=0
  run M_PRUNE_BLIND -DPRUNE -DM_PRUNE_BLIND -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=1
  run M_LETTER_FORGOT -DM_LETTER_FORGOT -DMTOK=1 -DCRASH=1 -DUNK=0 -DPAUSES=0 -DRTOK=0
  MODEL=poison.pml run poison-shared
}
case $1 in 1|2|3) part$1;; *) part1; part2; part3;; esac
