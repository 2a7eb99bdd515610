/*
 * rollbackd.pml - the life of one identity (or NID of them), as a Promela model for Spin 6.
 *
 * What is modelled
 *   broker    counters of identical copies: mainF (never delivered before), mainR (redelivered), retry, dlq;
 *             an unacked delivery is hand[worker], an unacked dead letter is held[replayer].
 *   MySQL     one consumer_log row per identity; a row lock from the first write to the end of a transaction;
 *             a COMMIT whose answer is lost stays open in the server and is decided later, either way.
 *   Redis     nothing of it is kept, because nothing in it may count: the lock is left out (every interleaving that a lock
 *             would forbid is allowed), and a done marker says what it likes at every look, as a forged one would: with
 *             it the row is looked up, without it the row may be inserted unseen.
 *   time      a row's lease ends at will when its owner is gone, and PAUSES times under a live owner;
 *             a failed row becomes due at will (the retry delay).
 *   faults    CRASH process kills between any two steps, UNK lost answers (commit, claim, publish confirm, reopen),
 *             SLOST broken broker sessions under a living worker, DLIM dead-letterings by the broker itself,
 *             INFRA claims given back because a dependency stayed down,
 *             SNOOZE claims given back because the handler says that it is too early: not due before it comes due at will,
 *             REF letters that the dead-letter queue refuses for now: full, or gone.
 *   people    RTOK letters replayed by NR replayers at once, DTOK letters discarded, PRUNE retention; MTOK letters
 *             moved to the main queue by hand; ADOPT letters without a row that are filed as dead.
 *   heal      when nothing can move any more, faults stop, handlers succeed and every letter is replayed:
 *             everything must then be applied (or discarded), with nothing left over.
 *
 * What is checked (assertions, on every reachable state where they can change)
 *   E  the effect is committed at most once
 *   L  nothing is lost: applied, discarded, or a copy is in the broker (unacked ones included)
 *   D  a row in 3 has a letter: in the dead-letter queue, or on its way back by hand
 *   A  at most MAX attempts per opening of the row
 *   B  no attempt before the retry delay has passed
 *   H  after healing: applied or discarded, and no copy left over; no deadlock
 *   P  a failure that was found permanent costs no further run of the handler, until somebody reopens the row
 *
 * Default = the protocol as the code has it, less what README.md lists. A -DM_... switch takes one rule away; see run.sh.
 */
#ifndef MAX
#define MAX 2          /* ROLLBACKD_MAX_ATTEMPTS */
#endif
#ifndef NID
#define NID 1          /* identities */
#endif
#ifndef NW
#define NW 2           /* workers (lanes of one or of two daemons) */
#endif
#ifndef NR
#define NR 1           /* replayers */
#endif
#ifndef COPIES
#define COPIES 2       /* original + duplicates */
#endif
#ifndef CRASH
#define CRASH 1
#endif
#ifndef UNK
#define UNK 1
#endif
#ifndef PAUSES
#define PAUSES 1
#endif
#ifndef SNOOZE
#define SNOOZE 0
#endif
#ifndef SLOST
#define SLOST 0
#endif
#ifndef DLIM
#define DLIM 0
#endif
#ifndef RTOK
#define RTOK 1
#endif
#ifndef DTOK
#define DTOK 0
#endif

#ifndef INFRA
#define INFRA 0
#endif
#ifndef MTOK
#define MTOK 0
#endif
#ifndef REF
#define REF 0          /* the permanent failures of the fast path are in only with it */
#endif
#ifndef ADOPT
#define ADOPT 0        /* letters without a row that a person files (reconcile --adopt) */
#endif
#ifdef ONLY_E          /* check at-most-once alone: what does that need? */
#define CHECK(x) skip
#else
#define CHECK(x) assert(x)
#endif

#define NONE 5         /* no row; 0..4 as in consumer_status */

/* The row. */
byte st[NID] = NONE, times[NID], repl[NID];
byte own[NID];                    /* worker+1 that claimed it last (only to drive the clock) */
bool live[NID], due[NID];         /* lease lives; retry delay has passed */
byte rl[NID];                     /* row lock: worker+1 */
byte effects[NID];
bool pruned[NID];
#if REF>0
byte ref = REF;
bool doom[NID];                   /* the row in 2 keeps the reason of its letter: no attempt is left */
bool found[NID];                  /* no column: somebody has written down that this opening failed for good */
#ifdef M_REASON_IGNORED           /* the reason is written, and nobody reads it */
#define DOOMED(x) false
#else
#define DOOMED(x) (st[x]==2 && doom[x])
#endif
#define PERMANENT(x) found[x]
#else
#define DOOMED(x) false
#define PERMANENT(x) false
#endif

/* The broker. */
byte mainF[NID], mainR[NID], retry[NID], dlq[NID];
#if ADOPT>0
byte hand[NW], held[NR+2];        /* id+1 of the unacked delivery; held[NR] belongs to discard, held[NR+1] to adoption */
byte adopt = ADOPT;
#define ADOPTED(x) (held[NR+1]==(x)+1)
#else
byte hand[NW], held[NR+1];        /* id+1 of the unacked delivery; held[NR] belongs to discard */
#define ADOPTED(x) 0
#endif
#if MTOK>0                        /* NID 1, RTOK 0, SLOST 0: one letter on its way back by hand, made before any reopening */
byte mtok = MTOK;
byte mloc;                        /* 0 nowhere, 1 main queue, 2 a worker's hand, 3 retry queue */
#define MOVING (mloc!=0)
#define MOVED(x) (mloc==1 || mloc==3)
#else
#define MOVING false
#define MOVED(x) 0
#endif

byte hold[NW];                    /* id+1 that this worker believes to have claimed */
byte zomb[NW];                    /* id+1 of a transaction left open in the server by a lost COMMIT */

byte crashes = CRASH, unk = UNK, pauses = PAUSES, slost = SLOST, dlim = DLIM, rtok = RTOK, dtok = DTOK, infra = INFRA, snooze = SNOOZE;
bool heal;
byte rounds;                      /* clean replays of the whole queue */

#if defined(M_TIMES_ONLY)         /* the version is consumer_times alone: replays is not compared */
#define SAME(S,T,R) (st[i]==(S) && times[i]==(T))
#elif defined(M_STATUS_ONLY)      /* only the status is compared */
#define SAME(S,T,R) (st[i]==(S))
#elif defined(M_NO_STATUS)        /* only times and replays are compared, not the status */
#define SAME(S,T,R) (times[i]==(T) && repl[i]==(R))
#else
#define SAME(S,T,R) (st[i]==(S) && times[i]==(T) && repl[i]==(R))
#endif
#if defined(M_NO_DUE) || defined(M_CLAIM_EARLY) /* the claim's statement does not ask whether the row is due */
#define TIME(x) true
#else
#define TIME(x) (st[x]!=2 || due[x])
#endif
#ifdef M_AGAIN_EARLY
#define UNTRIED (SAME(s,t,r) && !DOOMED(i))
#else
#define UNTRIED (SAME(s,t,r) && !DOOMED(i) && TIME(i)) /* a row in 2 with no attempt, as it was read */
#endif
#ifdef M_NO_CAS                   /* (c) the success update does not compare at all */
#define OWNED true
#else
#define OWNED SAME(0,t,r)
#endif

#if NW==2
#define INHAND(x) ((hand[0]==(x)+1)+(hand[1]==(x)+1))
#else
#define INHAND(x) ((hand[0]==(x)+1)+(hand[1]==(x)+1)+(hand[2]==(x)+1))
#endif
#if NR==1
#define HELD(x) ((held[0]==(x)+1)+(held[1]==(x)+1)+ADOPTED(x))
#else
#define HELD(x) ((held[0]==(x)+1)+(held[1]==(x)+1)+(held[2]==(x)+1)+ADOPTED(x))
#endif
#define COPY(x) (mainF[x]+mainR[x]+retry[x]+MOVED(x)+INHAND(x))
#define NOTLOST(x) (st[x]==1 || st[x]==4 || pruned[x] || COPY(x)+dlq[x]+HELD(x) > 0)
#if MTOK>0
#define LETTER(x)  (st[x]!=3 || dlq[x]+HELD(x) > 0 || (MOVING && repl[x]==0))
#else
#define LETTER(x)  (st[x]!=3 || dlq[x]+HELD(x) > 0)
#endif

#if REF>0
inline setrow(S,T,R) { if :: repl[i]!=(R) -> found[i]=0 :: else fi; doom[i]=0; st[i]=S; times[i]=T; repl[i]=R; live[i]=(S==0); due[i]=0; own[i]=0 }
#else
inline setrow(S,T,R) { st[i]=S; times[i]=T; repl[i]=R; live[i]=(S==0); due[i]=0; own[i]=0 }
#endif
inline effect() { effects[i]++; assert(effects[i]<=1) /* E */ }

/* A delivery goes back to the queue, or over the delivery limit to the dead-letter queue. */
inline requeue(x) {
  if
  :: mainR[x]++
  :: dlim>0 -> dlim--; dlq[x]++
  fi
}

#define CLEAR s=0; t=0; r=0; i=0; fr=0
#define KILL :: atomic { crashes>0 -> crashes--; goto crashed }

#ifdef M_ACK_EARLY                /* (a) acked on arrival */
#define TAKE(x) i=x; hand[w]=0
#else
#define TAKE(x) i=x; hand[w]=x+1
#endif

proctype Worker(byte w) {
  byte i, s, t, r; bool fr, lt;    /* lt: what is in hand is a letter moved by hand */

idle:
end_idle:
  if
  :: atomic { mainF[0]>0 -> mainF[0]--; fr=1; TAKE(0) }
  :: atomic { mainR[0]>0 -> mainR[0]--; TAKE(0) }
#if MTOK>0
  :: atomic { mloc==1 -> mloc=2; lt=1; TAKE(0) }
#endif
#if NID>1
  :: atomic { mainF[1]>0 -> mainF[1]--; fr=1; TAKE(1) }
  :: atomic { mainR[1]>0 -> mainR[1]--; TAKE(1) }
#endif
  fi;

look:                             /* done marker, then consumer_log */
  if
  KILL
#ifdef M_MARKER_ENDS              /* a done marker ends a message */
  :: atomic { true -> goto ack }
#endif
  :: atomic { fr -> s=NONE; t=0; r=0; goto fast }    /* no marker, and new by its looks: the insert finds out */
  :: atomic {                                        /* a marker, or not new by its looks */
       true -> s=st[i]; t=times[i]; r=repl[i];
       if
       :: s==1 || s==4 || (s==3 && !(lt && r==0)) -> goto ack  /* duplicate, duplicate_of_dead */
       :: s==3 && lt && r==0   -> goto reopen        /* its own letter */
       :: s==NONE && fr        -> goto fast
       :: s==NONE              -> goto claim
       :: s==0 && live[i]      -> goto back
       :: s==0 && !live[i] && t<MAX -> goto claim    /* crashed worker */
#ifdef M_NO_EXHAUST               /* the diagram taken literally: an expired lease is always claimed */
       :: s==0 && !live[i] && t>=MAX -> goto claim
#else
       :: s==0 && !live[i] && t>=MAX -> goto exhaust
#endif
       :: s==2 && (t>=MAX || DOOMED(i)) -> goto dead /* its letter was never confirmed */
       :: s==2 && t<MAX && !DOOMED(i) && due[i] -> goto claim
       :: s==2 && t==0 && !DOOMED(i) && due[i] -> goto again   /* reopened, and not tried since */
#if defined(M_AGAIN_EARLY)        /* such a row is tried before it is due */
       :: s==2 && t==0 && !DOOMED(i) && !due[i] -> goto again
#endif
#if defined(M_NO_DUE)             /* a failed row may be claimed by any copy, at once */
       :: s==2 && t<MAX && !DOOMED(i) && !due[i] -> goto claim
#elif defined(M_ACK_WAITING)      /* a copy of a row that waits for its retry is acked as a duplicate */
       :: s==2 && t<MAX && !DOOMED(i) && !due[i] -> goto ack
#else
       :: s==2 && t<MAX && !DOOMED(i) && !due[i] -> goto back
#endif
       fi
     }
  fi;

fast:                             /* INSERT as success, handler, COMMIT: one transaction */
  if
  KILL
#ifdef M_NO_UNIQUE                /* (b) no unique key: the insert never fails */
  :: atomic { true -> skip }
#else
  :: atomic { rl[i]==0 && st[i]==NONE -> CHECK(!PERMANENT(i)) /* P */; rl[i]=w+1 }
  :: atomic { rl[i]==0 && st[i]!=NONE -> fr=0; goto look }       /* 1062: look again */
#endif
  fi;
  if
  :: atomic { crashes>0 -> crashes--; rl[i]=0; goto crashed }
  :: atomic { !heal -> rl[i]=0; s=NONE; t=0; r=0; goto claim }   /* failed without blame, rolled back: slow path */
  :: atomic { !heal -> rl[i]=0; s=NONE; t=0; r=0; goto blamed }  /* blamed in time: that was its attempt */
#if REF>0
  :: atomic { !heal -> rl[i]=0; s=NONE; t=0; r=0; goto dead }    /* blamed for good, without an attempt */
#endif
  :: atomic { true -> setrow(1,1,0); effect(); rl[i]=0; goto settled }
  :: atomic { unk>0 && zomb[w]==0 -> unk--; zomb[w]=i+1; fr=0;
#ifdef M_DONE_EARLY               /* a done marker (and an ack) although the commit's outcome is unknown */
              goto settled
#else
              goto look
#endif
     }
  fi;

again:                            /* the fast path of a reopened row: UPDATE as success, handler, COMMIT */
  if
  KILL
#ifdef M_AGAIN_BLIND              /* the update compares nothing */
  :: atomic { rl[i]==0 -> rl[i]=w+1 }
#else
  :: atomic { rl[i]==0 && UNTRIED -> CHECK(due[i]) /* B */; CHECK(!PERMANENT(i)) /* P */; rl[i]=w+1 }
  :: atomic { rl[i]==0 && !UNTRIED -> fr=0; goto look }
#endif
  fi;
  if
  :: atomic { crashes>0 -> crashes--; rl[i]=0; goto crashed }
  :: atomic { !heal -> rl[i]=0; goto claim }                     /* failed without blame, rolled back: claimed */
  :: atomic { !heal -> rl[i]=0; goto counted }                   /* blamed in time: that was its attempt */
#if REF>0
  :: atomic { !heal -> rl[i]=0; goto dead }                      /* blamed for good, without an attempt */
#endif
  :: atomic { true -> setrow(1,t+1,r); effect(); rl[i]=0; goto settled }
  :: atomic { unk>0 && zomb[w]==0 -> unk--; zomb[w]=i+1; fr=0;
#ifdef M_DONE_EARLY
              goto settled
#else
              goto look
#endif
     }
  fi;

counted:                          /* its blame: 2 -> 2, one attempt */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
#ifdef M_COUNTED_BLIND            /* whatever the row has become meanwhile */
       :: true
#else
       :: UNTRIED
#endif
          -> CHECK(!PERMANENT(i)); setrow(2,t+1,r); t=t+1; if :: t>=MAX -> goto dead :: else -> goto back fi
#ifndef M_COUNTED_BLIND
       :: else -> fr=0; goto look
#endif
       fi }
  :: atomic { unk>0 && rl[i]==0 && UNTRIED -> unk--; if :: setrow(2,t+1,r) :: true fi; goto counted }
  fi;

blamed:                           /* the fast path's blame: none -> 2, one attempt; a death before that counts none */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
#ifdef M_BLAMED_OVER              /* an insert that overwrites what it meets */
       :: true
#else
       :: st[i]==NONE
#endif
          -> CHECK(!PERMANENT(i)); setrow(2,1,0); s=2; t=1; if :: t>=MAX -> goto dead :: else -> goto back fi
#ifndef M_BLAMED_OVER
       :: else -> fr=0; goto look                   /* 1062: nothing is counted, it goes the row's way */
#endif
       fi }
  :: atomic { unk>0 && rl[i]==0 && st[i]==NONE -> unk--; if :: setrow(2,1,0) :: true fi; goto blamed }
  fi;

reopen:                           /* a letter moved by hand: as a replay does */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
       :: SAME(s,t,r) -> setrow(2,0,r+1); due[i]=1; s=2; t=0; r=r+1
       :: else -> goto back
       fi }
  fi;

claim:                            /* one committed conditional UPDATE (or INSERT as 0, times 1) */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
       :: SAME(s,t,r) && !(s==0 && live[i]) && !DOOMED(i) && TIME(i) ->
          CHECK(s!=2 || due[i]);                    /* B */
          CHECK(!PERMANENT(i));                     /* P */
          setrow(0,t+1,r); own[i]=w+1; hold[w]=i+1; s=0; t=t+1;
          CHECK(t<=MAX)                             /* A */
       :: else -> goto back
       fi }
  :: atomic { unk>0 && rl[i]==0 -> unk--;            /* answer lost: without a token nobody can say whose claim it is */
       if
       :: SAME(s,t,r) && !(s==0 && live[i]) && !DOOMED(i) && TIME(i) -> setrow(0,t+1,r); own[i]=w+1
       :: true
       fi; goto back }
  fi;

attempt:                          /* the handler */
  if
  KILL
  :: goto commit
  :: atomic { infra>0 && rl[i]==0 -> infra--;        /* a dependency failed for long: un-claim, no attempt spent */
       if
       :: SAME(0,t,r) -> setrow(2,t-1,r); due[i]=1
       :: else
       fi; hold[w]=0; goto back }
  :: atomic { snooze>0 && !heal && rl[i]==0 -> snooze--; /* put off by the handler: no attempt spent, due in its time */
       if
       :: SAME(0,t,r) -> setrow(2,t-1,r)
       :: else
       fi; hold[w]=0; goto back }
  :: atomic { !heal -> goto record }
  :: atomic { !heal -> s=0; goto dead }              /* permanent error */
  fi;

commit:                           /* effect and 0 -> 1 in one transaction */
  if
  KILL
  :: atomic { rl[i]==0 -> if :: OWNED -> rl[i]=w+1 :: else -> goto back fi }
  fi;
  if
  :: atomic { crashes>0 -> crashes--; rl[i]=0; goto crashed }
  :: atomic { true -> setrow(1,t,r); effect(); rl[i]=0; goto settled }
  :: atomic { unk>0 && zomb[w]==0 -> unk--; zomb[w]=i+1;
#ifdef M_DONE_EARLY
              goto settled
#endif
     }
  fi;
  if                              /* unknown: look again, then repeat the same step under the same claim */
  KILL
  :: atomic { st[i]==1 -> goto settled }
  :: atomic { SAME(0,t,r) -> goto commit }
  :: atomic { SAME(0,t,r) && infra>0 -> goto attempt }
  :: atomic { st[i]!=1 && !SAME(0,t,r) -> goto back }
  fi;

record:                           /* 0 -> 2 */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
       :: SAME(0,t,r) -> setrow(2,t,r); hold[w]=0; s=2; if :: t>=MAX -> goto dead :: else -> goto back fi
       :: else -> goto back
       fi }
  :: atomic { unk>0 && rl[i]==0 && SAME(0,t,r) -> unk--; setrow(2,t,r); hold[w]=0; goto look }
  fi;

exhaust:                          /* five crashes: 0 (expired) -> 2, no attempt, then the dead-letter queue */
  if
  KILL
  :: atomic { rl[i]==0 -> if :: SAME(0,t,r) && !live[i] -> setrow(2,t,r); s=2 :: else -> goto back fi }
  fi;

dead:                             /* letter, confirmed; then the row */
#ifdef M_MARK_FIRST               /* 3 before the letter is confirmed */
  if
  KILL
  :: atomic { rl[i]==0 -> if :: SAME(s,t,r) -> setrow(3,t,r); hold[w]=0 :: else -> goto back fi }
  fi;
#endif
  if
  KILL
  :: atomic { true -> dlq[i]++ }
  :: atomic { unk>0 -> unk--; if :: dlq[i]++ :: true fi; goto dead }
#if REF>0
  :: atomic { ref>0 -> ref--; if :: s==2 && (t>0 || DOOMED(i)) -> goto wait :: else -> goto condemn fi }
#endif
  fi;
#ifdef M_MARK_FIRST
  goto ack;
#endif
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
       :: SAME(s,t,r) -> setrow(3,t,r); hold[w]=0; CHECK(LETTER(i)) /* D */; goto ack
       :: else -> goto back
       fi }
  fi;

#if REF>0
condemn:                          /* the letter is refused for now: none, 0, 2 -> 2 with its reason, no attempt left */
  if
  KILL
#ifdef M_NO_REASON                /* as before: the row stays as it is until the letter is confirmed */
  :: atomic { true -> found[i]=1; goto wait }
#else
  :: atomic { rl[i]==0 ->
       if
#ifdef M_CONDEMN_NO_CAS           /* whatever the row has become meanwhile */
       :: true
#else
       :: SAME(s,t,r)
#endif
          -> setrow(2,t,r); doom[i]=1; found[i]=1; hold[w]=0; s=2
       :: else -> goto back
       fi }
  :: atomic { unk>0 && rl[i]==0 && SAME(s,t,r) -> unk--; setrow(2,t,r); doom[i]=1; found[i]=1; hold[w]=0; goto look }
#endif
  fi;

wait:                             /* the delivery is held, unacked, while its lane goes on with others */
  if
  KILL
#ifdef M_ACK_PAST                 /* somebody else's ack with multiple passes it */
  :: goto ack
#endif
  :: goto crashed                                   /* held too long, or the lane ends: it goes back */
  :: atomic { true ->                               /* once more: the row is looked at first */
       if
       :: SAME(s,t,r) -> goto dead
#ifdef M_HELD_FORGOT              /* a letter moved by hand is held, and forgets that it is the letter of a dead row */
       :: !SAME(s,t,r) && (st[i]==1 || st[i]==3 || st[i]==4) -> goto ack
#else
       :: !SAME(s,t,r) && (st[i]==1 || st[i]==4 || (st[i]==3 && !(lt && repl[i]==0))) -> goto ack
#endif
       :: else -> goto back
       fi }
  fi;
#endif

back:                             /* a copy to a retry queue, confirmed */
  if
  KILL
#if MTOK>0 && !defined(M_LETTER_FORGOT) /* the retry copy of a letter is an ordinary message */
  :: atomic { lt -> hold[w]=0; mloc=3; lt=0; goto ack }          /* the retry copy of a letter is a letter */
  :: atomic { !lt -> hold[w]=0; retry[i]++; goto ack }
#else
  :: atomic { true -> hold[w]=0; retry[i]++; goto ack }
#endif
  :: atomic { unk>0 -> unk--; hold[w]=0; if :: retry[i]++ :: true fi; goto back }
  fi;

settled:
  atomic { hold[w]=0 }
ack:                              /* void when the session is gone */
  if
  KILL
  :: atomic { true -> hold[w]=0; hand[w]=0;
#if MTOK>0
       if :: lt -> mloc=0; lt=0 :: else fi;
       CHECK(LETTER(i));
#endif
       CHECK(NOTLOST(i)) /* L */; CLEAR; goto idle }
  fi;

crashed:
  atomic {
    hold[w]=0;
    if
#if MTOK>0
    :: hand[w]!=0 && lt -> hand[w]=0; lt=0; mloc=1
    :: hand[w]!=0 && !lt -> hand[w]=0; requeue(i)
#else
    :: hand[w]!=0 -> hand[w]=0; requeue(i)
#endif
    :: else
    fi;
    CHECK(NOTLOST(i));
    CLEAR; goto idle
  }
}

/* One letter: reopen, publish, ack. */
proctype Replayer(byte k) {
  byte i, s, t, r;

idle:
end_idle:
  if
  :: atomic { rtok>0 && dlq[0]>0 -> i=0; rtok--; dlq[0]--; held[k]=1 }
#if NID>1
  :: atomic { rtok>0 && dlq[1]>0 -> i=1; rtok--; dlq[1]--; held[k]=2 }
#endif
  fi;
  if
  KILL
  :: atomic { true -> s=st[i]; t=times[i]; r=repl[i];
       if
       :: s==1 || s==4 -> goto drop                  /* stale letter */
       :: s==0 && live[i] -> goto putback            /* in progress: leave it */
#ifdef M_REPLAY_SKIP              /* as first designed: only 3 -> 2; what is not in 3 is left in the queue */
       :: s==NONE || s==2 || (s==0 && !live[i]) -> goto putback
       :: s==3 -> skip
#elif defined(M_REPLAY_PUBLISH)   /* as first designed: only 3 -> 2; what is not in 3 is published as it is */
       :: s==NONE || s==2 || (s==0 && !live[i]) -> goto pub
       :: s==3 -> skip
#else
#ifdef M_PRUNE_BLIND              /* a letter older than the log is replayed as if it were new */
       :: s==NONE -> skip
#else
       :: s==NONE && pruned[i] -> goto putback       /* older than LOG_RETENTION and without a row: refused */
       :: s==NONE && !pruned[i] -> skip
#endif
       :: s==2 || s==3 || (s==0 && !live[i]) -> skip
#endif
       fi }
  fi;
#ifndef M_REPLAY_NO_REOPEN        /* (d) published without reopening */
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
       :: SAME(s,t,r) && !(s==0 && live[i]) -> setrow(2,0,r+1); due[i]=1
       :: else -> goto putback
       fi }
  :: atomic { unk>0 && rl[i]==0 && SAME(s,t,r) && !(s==0 && live[i]) -> unk--; setrow(2,0,r+1); due[i]=1; goto putback }
  fi;
#endif
pub:
  if
  KILL
  :: atomic { true -> mainF[i]++ }
  :: atomic { unk>0 -> unk--; if :: mainF[i]++ :: true fi; goto putback }
  fi;
drop:
  if
  KILL
  :: atomic { true -> held[k]=0; CHECK(NOTLOST(i)) /* L */; CHECK(LETTER(i)) /* D */; s=0; t=0; r=0; i=0; goto idle }
  fi;
putback:
crashed:
  atomic { if :: held[k]!=0 -> held[k]=0; dlq[i]++ :: else fi; CHECK(NOTLOST(i)); s=0; t=0; r=0; i=0; goto idle }
}

/* 3 -> 4, then ack. */
proctype Discarder() {
  byte i;
idle:
end_idle:
  atomic { dtok>0 && dlq[0]>0 -> dtok--; dlq[0]--; held[NR]=1 }
  if
  KILL
  :: atomic { st[i]==1 || st[i]==4 -> skip }
  :: atomic { st[i]==3 -> st[i]=4 }                  /* one conditional UPDATE, committed */
  :: atomic { st[i]!=1 && st[i]!=3 && st[i]!=4 -> goto crashed }
  fi;
  if
  KILL
  :: atomic { true -> held[NR]=0; CHECK(NOTLOST(i)); CHECK(LETTER(i)); goto idle }
  fi;
crashed:
  atomic { if :: held[NR]!=0 -> held[NR]=0; dlq[i]++ :: else fi; goto idle }
}

#if ADOPT>0
/* A letter whose row is missing: none -> 3, by a person; then the letter is given back. */
proctype Adopter() {
  byte i;
idle:
end_idle:
  atomic { adopt>0 && dlq[0]>0 && !heal -> adopt--; dlq[0]--; held[NR+1]=1 }
  if
  KILL
#ifdef M_ADOPT_OLD                /* a letter that is older than the log's memory is filed as well */
  :: atomic { st[i]==NONE -> skip }
#else
  :: atomic { st[i]==NONE && !pruned[i] -> skip }
  :: atomic { st[i]==NONE && pruned[i] -> goto crashed }
#endif
  :: atomic { st[i]!=NONE -> goto crashed }
  fi;
again:
  if
  KILL
  :: atomic { rl[i]==0 ->
       if
#ifdef M_ADOPT_OVER               /* an insert that overwrites what it meets */
       :: true
#else
       :: st[i]==NONE
#endif
          -> setrow(3,0,0); CHECK(LETTER(i)) /* D */
#ifndef M_ADOPT_OVER
       :: else                                      /* somebody else wrote a row meanwhile */
#endif
       fi }
  :: atomic { unk>0 && rl[i]==0 && st[i]==NONE -> unk--; if :: setrow(3,0,0) :: true fi; goto again }
  fi;
crashed:
  atomic { if :: held[NR+1]!=0 -> held[NR+1]=0; dlq[i]++ :: else fi; CHECK(NOTLOST(i)); CHECK(LETTER(i)); goto idle }
}
#endif

/* A copy leaves its retry queue when it would not be sent straight back: an earlier arrival changes nothing. */
#define READY(x) (!(st[x]==0 && live[x]) && !(st[x]==2 && times[x]<MAX && !due[x] && !DOOMED(x)))

proctype Env() {
  byte i, k;
end_env:
  do
#if MTOK>0
  :: atomic { mtok>0 && dlq[0]>0 && repl[0]==0 -> mtok--; dlq[0]--; mloc=1 }
  :: atomic { mloc==3 && READY(0) -> mloc=1 }
#endif
  :: atomic { retry[0]>0 && READY(0) -> retry[0]--; mainF[0]++ }
#if NID>1
  :: atomic { retry[1]>0 && READY(1) -> retry[1]--; mainF[1]++ }
#endif
  :: atomic { st[0]==2 && !due[0] -> due[0]=1 }
  :: atomic { st[0]==0 && live[0] && (own[0]==0 || hold[own[0]-1]!=1) -> live[0]=0 }
  :: atomic { st[0]==0 && live[0] && own[0]!=0 && hold[own[0]-1]==1 && pauses>0 -> pauses--; live[0]=0 }
#if NID>1
  :: atomic { st[1]==2 && !due[1] -> due[1]=1 }
  :: atomic { st[1]==0 && live[1] && (own[1]==0 || hold[own[1]-1]!=2) -> live[1]=0 }
  :: atomic { st[1]==0 && live[1] && own[1]!=0 && hold[own[1]-1]==2 && pauses>0 -> pauses--; live[1]=0 }
#endif
  /* a lost COMMIT is decided */
  :: atomic { zomb[0]!=0 -> k=0; goto decide }
  :: atomic { zomb[1]!=0 -> k=1; goto decide }
  /* a broken session under a living process: its unacked delivery or letter goes back */
  :: atomic { slost>0 && hand[0]!=0 -> slost--; i=hand[0]-1; hand[0]=0; requeue(i); i=0 }
  :: atomic { slost>0 && hand[1]!=0 -> slost--; i=hand[1]-1; hand[1]=0; requeue(i); i=0 }
  :: atomic { slost>0 && held[0]!=0 -> slost--; i=held[0]-1; held[0]=0; dlq[i]++; i=0 }
#ifdef PRUNE
  /* retention: the row is older than every copy in motion, but perhaps not than a dead letter */
  :: atomic { st[0]==1 && COPY(0)==0 && HELD(0)==0 && !pruned[0] && !heal ->
              st[0]=NONE; times[0]=0; repl[0]=0; pruned[0]=1 }
#endif
  od;
decide:
  atomic {
    i=zomb[k]-1; zomb[k]=0; rl[i]=0;
    if
    :: st[i]==NONE -> setrow(1,1,0); effect()
    :: st[i]==0 -> setrow(1,times[i],repl[i]); effect()
    :: st[i]==2 -> setrow(1,times[i]+1,repl[i]); effect()
    :: true
    fi;
    i=0; k=0; goto end_env
  }
}

proctype Healer() {
end_wait:
  timeout -> atomic { heal=1; crashes=0; unk=0; pauses=0; slost=0; dlim=0; infra=0; snooze=0; dtok=0; rtok=0;
#if REF>0
                   ref=0;
#endif
#if MTOK>0
                   mtok=0
#endif
                 }
#define OVER(x) (st[x]==1 || st[x]==4 || pruned[x])  /* what is left in the dead-letter queue is stale, and dropped */
again:
  timeout -> atomic {
    CHECK(LETTER(0) && NOTLOST(0));
    CHECK(COPY(0)==0 && HELD(0)==0);                /* H: nothing is stuck */
#if NID>1
    CHECK(LETTER(1) && NOTLOST(1) && COPY(1)==0 && HELD(1)==0);
    if
    :: OVER(0) && OVER(1) -> goto over
    :: else -> CHECK(dlq[0]+dlq[1]>0)
    fi;
#else
    if
    :: OVER(0) -> goto over
    :: else -> CHECK(dlq[0]>0)
    fi;
#endif
    CHECK(rtok==0);                                 /* H: one clean replay of each letter suffices */
    rtok=dlq[0];
#if NID>1
    rtok=rtok+dlq[1];
#endif
    CHECK(rounds<2); rounds++;
    goto again
  };
over: skip
}

init {
  atomic {
    mainF[0]=COPIES;
#if NID>1
    mainF[1]=1;
#endif
    byte j=0;
    do :: j<NW -> run Worker(j); j++ :: else -> break od; j=0;
    do :: j<NR -> run Replayer(j); j++ :: else -> break od; j=0;
#if DTOK>0
    run Discarder();
#endif
#if ADOPT>0
    run Adopter();
#endif
    run Env();
#ifndef NOHEAL
    run Healer()
#endif
  }
}
