/*
 * taken.pml - one identity of a classic log that is taken over while its consumer works on, for Spin 6.
 *
 * What is modelled
 *   old consumer  inserts its row in progress, has its effect in a transaction of its own, and marks its row 1; or marks it
 *                 2 and tries once more; it may die between any two of these, and stops before the last pass.
 *   passes        NM migrators at once, PASSES each, and a last one; each reads the old row, then ours, then writes by a
 *                 statement that compares what it read, or not at all. Any of them may be slow between two steps, also
 *                 beyond the last pass.
 *   daemon        a worker that takes COPIES of the message, after the last pass.
 *   person        finds out the truth about a row that is dead, after the last pass: discards what had its effect, and
 *                 replays what had not.
 *
 * What is checked
 *   E  the effect happens at most once, by whomever
 *   S  a row that says success has had its effect
 *   U  a pass changes a row only as it read it, and never one that a person or the daemon has moved
 *   K  after the last pass the identity of every old row is known
 *   H  in the end it is success, or discarded with its effect had; nothing is left open
 *
 * A -DM_... switch takes one rule away; see run.sh.
 */
#ifndef NM
#define NM 2
#endif
#ifndef PASSES
#define PASSES 2
#endif
#ifndef COPIES
#define COPIES 1
#endif
#define NONE 5

byte old = NONE;                  /* the old row */
byte st = NONE, repl;             /* ours; 2 is a reopened one, whose message is in the main queue */
bool taken;                       /* its owner says so */
byte effects, main;
bool ended, last;

inline effect() { effects++; assert(effects<=1) /* E */ }

proctype Old() {
  byte tries;
  if
  :: true -> goto over                              /* it never got the message */
  :: atomic { true -> old=0 }
  fi;
try:
  tries++;
  if
  :: atomic { true -> effect() }                    /* a transaction of its own */
  :: atomic { true -> old=2; if :: tries<2 -> skip :: true -> goto over fi };
     atomic { old=0 };
     goto try
  :: true -> goto over                              /* it dies in progress */
  fi;
  if
  :: atomic { true -> old=1 }
  :: true -> skip                                   /* it dies before it says so */
  fi;
over:
  atomic { ended=1 }
}

/* The write of a pass: o is the old row, s, r and t ours as they were read. */
inline take(o,s,r,t) {
  if
  :: o==NONE -> skip
  :: o!=NONE && s==NONE ->
     if
#ifdef M_INSERT_OVER              /* an insert that overwrites what it meets */
     :: true ->
#else
     :: st==NONE ->
#endif
        taken=1; repl=0; if :: o==1 -> st=1 :: else -> st=3 fi
#ifndef M_INSERT_OVER
     :: else -> skip                                /* 1062: nothing is written, look again at the next pass */
#endif
     fi
  :: o==1 && s==3 && t ->
     if
#ifdef M_BLIND                    /* what was read is not compared */
     :: true -> assert(st==3 && taken && repl==r) /* U */; st=1; taken=1
#else
     :: st==3 && taken && repl==r -> st=1
     :: else -> skip
#endif
     fi
  :: else -> skip                                   /* as it was taken over, or somebody's of ours */
  fi;
  assert(st!=1 || effects>0)                        /* S */
}

proctype Migrator(byte passes) {
  byte o, s, r; bool t;
  do
  :: passes>0 ->
     passes--;
     atomic { o=old };
     atomic { s=st; r=repl; t=taken };
     atomic { take(o,s,r,t); o=0; s=0; r=0; t=0 }
  :: passes==0 -> break
  od
}

/* The last pass: after the old consumer, from its first row. It looks again when its write met somebody. */
proctype Last() {
  byte o, s, r; bool t;
#ifndef M_LAST_EARLY              /* the old consumer is still at work */
  ended;
#endif
again:
  atomic { o=old };
#ifdef M_LAST_RESUMED             /* it goes on in the middle, behind this row */
  atomic { last=1; goto end };
#endif
  atomic { s=st; r=repl; t=taken };
  atomic {
    take(o,s,r,t);
    if
    :: o!=NONE && st==NONE -> goto again
    :: o==1 && st==3 && taken -> goto again
    :: else -> skip
    fi;
    last=1;
    assert(old==NONE || st!=NONE)                   /* K */
  }
end: skip
}

/* The daemon: a copy without a row is applied, one of a reopened row too, any other ends without an effect. */
proctype Worker() {
  byte left = COPIES;
end_work:
  do
  :: atomic { last && left>0 -> left--; if :: st==NONE -> st=1; taken=0; effect() :: else -> skip fi }
  :: atomic { main>0 -> main--; if :: st==2 -> st=1; taken=0; effect() :: else -> skip fi }
  od
}

proctype Person() {
#ifdef M_DECIDE_EARLY             /* before the last pass */
#define MAYDECIDE true
#else
#define MAYDECIDE last
#endif
  byte decisions = 2;
end_person:
  do
  :: atomic { decisions>0 && st==3 && MAYDECIDE -> decisions--;
              if :: effects>0 -> st=4 :: else -> st=2; repl++; taken=0; main++ fi }
  od
}

proctype End() {
end_wait:
  timeout -> assert(last);
  assert(st==NONE && old==NONE || st==1 || st==4 && effects==1)   /* H */
}

init {
  atomic {
    byte j=0;
    do :: j<NM -> run Migrator(PASSES); j++ :: else -> break od;
    run Old(); run Last(); run Worker(); run Person(); run End()
  }
}
