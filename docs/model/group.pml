/*
 * group.pml - two identities that workers take together. rollbackd.pml has the life of one message in full; here is what
 * sharing adds: rows and effects of a group in one transaction, the blamed that leave it, their failures in one commit
 * after the group's outcome is known, claims of many in one commit, and claims that are given back together.
 *
 * What is modelled
 *   broker    counters of copies, as in rollbackd.pml; a delivery is in the hand of a worker while its way is not 0
 *   MySQL     a row per identity with status, attempts, replays and owner; row locks until the end of a transaction, also
 *             of a COMMIT without an answer, which is decided later, either way. Every statement of many is one step; what
 *             is compared is compared row by row, and a row that is lost leaves the others alone.
 *   owner     a token that nobody else uses for this identity: the smallest that is neither in the row nor in a worker;
 *             and the mark behind it: claimed while others were (1), or by itself because of what it may do (2)
 *   reads     are snapshots: they do not wait for locks
 *   faults    CRASH deaths of a worker between any two steps, UNK lost answers (COMMIT, claims, un-claims, failures),
 *             PAUSES leases that end under a living owner, INFRA groups that meet trouble (their claims are given back)
 *   people    RTOK letters replayed
 *
 * What is checked, beside E, L, D, A and B of rollbackd.pml
 *   K  the row counts exactly the attempts that a worker got or that the handler blamed, and no other
 *   X  an attempt ends without a result only by a death or by a lease that ended under a living owner: as many of an
 *      identity as there were of these
 *   G  only a claim that was made by itself is exhausted: a last attempt beside others is taken back and made alone
 *   F  that is done once in each opening of the row
 *   P  (PERM) what failed for good costs no further run
 *   R  at rest nothing is in motion, and every identity is applied, or dead with its letter
 *
 * Default = the protocol. A -DM_... switch takes one rule away; see run.sh.
 */
#ifndef MAX
#define MAX 2
#endif
#ifndef COPIES
#define COPIES 1       /* of the first identity; the second has one */
#endif
#ifndef CRASH
#define CRASH 1
#endif
#ifndef UNK
#define UNK 0
#endif
#ifndef PAUSES
#define PAUSES 0
#endif
#ifndef INFRA
#define INFRA 0
#endif
#ifndef RTOK
#define RTOK 0
#endif
#ifndef START          /* 5: no rows yet; 2: both failed once and are due, as after a retry queue */
#define START 5
#endif

#define NONE 5

/* The rows. */
byte st[2] = START, times[2], repl[2], own[2];
bool live[2], due[2];
byte rl[2];                       /* row lock: worker+1 */
byte effects[2];
byte att[2];                      /* no column: attempts that workers got since the row was made or reopened */
byte mk[2];                       /* the mark of the owner: 0 none, 1 with others, 2 by itself */
byte forg[2];                     /* no column: last attempts that were taken back since the row was made or reopened */
byte lost[2];                     /* no column: claims that were taken over or ended from outside */
#ifdef PERM
bool doom[2], found[2];           /* the reason of a letter is kept; no column: somebody knows that it failed for good */
#define DOOMED(x) (st[x]==2 && doom[x])
#else
#define DOOMED(x) false
#endif

/* The broker. */
byte mainq[2], retry[2], dlq[2];
byte held;                        /* id+1 of the letter in the replayer's hand */

/* The ways of an item in a worker's hand, in the order in which a batch goes through them. */
#define OUT 0
#define LOOK 1                    /* its row is to be read */
#define FRESH 2                   /* no row: the fast path */
#define BLAMED 3                  /* by the fast path; to be recorded */
#define GROUP 4                   /* to be claimed with the others */
#define CLAIMED 5
#define ASK 6                     /* claimed; the group's COMMIT had no answer */
#define UNCL 7                    /* claimed, to be given back */
#define FAILED 8                  /* claimed and blamed; to be recorded */
#define COND 9                    /* claimed and failed for good; to be recorded */
#define EXH 10                    /* expired without attempts left */
#define SINGLE 11                 /* to be claimed alone */
#define DEAD 12                   /* letter */
#define MARK 13                   /* letter confirmed; the row */
#define BACK 14                   /* a copy to a retry queue */
#define ACK 15
#define FORG 16                   /* expired, no attempts left, claimed with others: its last attempt is taken back */

byte wy[4], tok[4];               /* of worker w and identity x at w*2+x */
bool al[4];                       /* it goes by itself: a take-over, or a row with the mark */
byte lk[2], zl[2], zm[2];         /* per worker: rows locked; rows locked by a lost COMMIT; rows which that would apply */
byte crashes = CRASH, unk = UNK, pauses = PAUSES, infra = INFRA, rtok = RTOK;

#define W(x) wy[w*2+(x)]
#define O(x) tok[w*2+(x)]
#define AL(x) al[w*2+(x)]
#define ANY(y) (W(0)==(y) || W(1)==(y))
#define FREE(y) ((W(0)!=(y) || rl[0]==0) && (W(1)!=(y) || rl[1]==0))
#define NO(y) (W(0)!=(y) && W(1)!=(y))
#define COPY(x) (mainq[x]+retry[x]+(wy[x]!=0)+(wy[2+(x)]!=0))
#define NOTLOST(x) (st[x]==1 || COPY(x)+dlq[x]+(held==(x)+1)>0)
#define LETTER(x) (st[x]!=3 || dlq[x]+(held==(x)+1)>0)
#define COUNTS(x) (!(st[x]==0 || st[x]==2) || times[x]==att[x])
#define BIT(x) (1<<(x))

#define VERSION(x,S,T,R) (st[x]==(S) && times[x]==(T) && repl[x]==(R))
#define MINE(x) (VERSION(x,0,t[x],r[x]) && own[x]==O(x))

#ifdef M_CLAIM_TIMES              /* a claim of many compares no attempts */
#define SEEN(x) (st[x]==s[x] && (s[x]==NONE || repl[x]==r[x]))
#else
#define SEEN(x) (st[x]==s[x] && (s[x]==NONE || times[x]==t[x] && repl[x]==r[x]))
#endif
#ifdef M_TX_BLIND                 /* the group's transaction compares nothing */
#define HAS(x) true
#else
#define HAS(x) MINE(x)
#endif
#if defined(M_UNCLAIM_BLIND)      /* given back whatever the row has become */
#define GIVES(x) true
#elif defined(M_UNCLAIM_OWNER)    /* given back without comparing the owner */
#define GIVES(x) VERSION(x,0,t[x],r[x])
#else
#define GIVES(x) MINE(x)
#endif
#ifdef M_FAIL_BLIND               /* a failure is recorded whatever the row has become */
#define FAILS(x) true
#else
#define FAILS(x) MINE(x)
#endif

#ifdef M_NO_FORGIVE               /* whatever the mark, an expired lease without attempts left is the end */
#define TAKEN_BACK(x) false
#elif defined(M_FORGIVE_ALWAYS)   /* also what was claimed by itself */
#define TAKEN_BACK(x) true
#else
#define TAKEN_BACK(x) (mk[x]!=2)
#endif
#ifdef M_FORGIVE_BLIND            /* compares status, attempts and replays, and not the owner */
#define HELD_BY(x) true
#else
#define HELD_BY(x) (own[x]==O(x))
#endif

/* A mark 1 says something of a claim only, a mark 2 stays until success. */
inline mark(x,S) { if :: (S)==1 || (S)!=0 && mk[x]==1 -> mk[x]=0 :: else fi }

#ifdef PERM
inline setrow(x,S,T,R,P) { mark(x,S); if :: repl[x]!=(R) -> found[x]=0 :: else fi; doom[x]=0;
                           st[x]=S; times[x]=T; repl[x]=R; own[x]=P; live[x]=(S==0); due[x]=0 }
#else
inline setrow(x,S,T,R,P) { mark(x,S); st[x]=S; times[x]=T; repl[x]=R; own[x]=P; live[x]=(S==0); due[x]=0 }
#endif
inline effect(x) { effects[x]++; assert(effects[x]<=1) /* E */; att[x]=0; forg[x]=0 }
inline token(x) {                 /* one that nobody else has */
  if
  :: O(x)!=0
  :: else ->
     n=1;
     do :: (n==own[x] || n==tok[x] || n==tok[2+(x)]) -> n++ :: else -> break od;
     O(x)=n; n=0
  fi
}
inline unlock(m) { if :: (m)&1 -> rl[0]=0 :: else fi; if :: (m)&2 -> rl[1]=0 :: else fi; m=0 }
#define DONE(x) s[x]=0; t[x]=0; r[x]=0; O(x)=0; AL(x)=0

inline look(x) {
  if
  :: W(x)==LOOK ->
     s[x]=st[x]; t[x]=times[x]; r[x]=repl[x]; O(x)=0; AL(x)=0;
     if :: s[x]==NONE -> t[x]=0; r[x]=0 :: else fi;
     assert(rl[x]!=0 || COUNTS(x)) /* K */;
     if
     :: s[x]==NONE -> W(x)=FRESH
     :: s[x]==NONE -> W(x)=GROUP                    /* delivered more often */
     :: s[x]==1 || s[x]==3 -> W(x)=ACK; DONE(x)
     :: s[x]==0 && live[x] -> W(x)=BACK; DONE(x)
     :: s[x]==0 && !live[x] && t[x]<MAX -> W(x)=SINGLE; AL(x)=1
     :: s[x]==0 && !live[x] && t[x]>=MAX && TAKEN_BACK(x) -> W(x)=FORG; O(x)=own[x]
     :: s[x]==0 && !live[x] && t[x]>=MAX && !TAKEN_BACK(x) -> W(x)=EXH
     :: s[x]==2 && (t[x]>=MAX || DOOMED(x)) -> W(x)=DEAD
     :: s[x]==2 && t[x]<MAX && !DOOMED(x) && due[x] -> if :: mk[x]==2 -> W(x)=SINGLE; AL(x)=1 :: else -> W(x)=GROUP fi
     :: s[x]==2 && t[x]==0 && !DOOMED(x) && due[x] && mk[x]!=2 -> W(x)=FRESH     /* reopened, and not tried since */
     :: s[x]==2 && t[x]<MAX && !DOOMED(x) && !due[x] -> W(x)=BACK; DONE(x)
     fi
  :: else
  fi
}

/* The fast path needs no row, or the row in 2 that was read, with no attempt. */
#ifdef M_AGAIN_BLIND              /* it compares nothing of a row */
#define UNTRIED(x) (st[x]==NONE || s[x]==2)
#else
#define UNTRIED(x) (st[x]==NONE && s[x]==NONE || s[x]==2 && SEEN(x) && !DOOMED(x) && mk[x]!=2)
#endif
inline inserted(x) {
  if
  :: W(x)==FRESH ->
     assert(s[x]!=2 || due[x]) /* B */;
#ifdef PERM
     assert(!found[x]) /* P */;
#endif
     rl[x]=w+1; lk[w]=lk[w]|BIT(x)
  :: else
  fi
}

/* What the handler says of an item of the fast path whose transaction is committed. */
inline fastend(x) {
  if
  :: W(x)==FRESH ->
     if
     :: true -> setrow(x,1,t[x]+1,r[x],0); effect(x); W(x)=ACK; DONE(x)
#ifndef M_BLAME_EARLY
     :: true -> W(x)=BLAMED
#endif
#ifdef PERM
     :: true -> W(x)=DEAD
#endif
     fi
#ifdef M_BLAME_EARLY
  :: W(x)==BLAMED && O(x)!=0 -> att[x]=1; W(x)=BACK; DONE(x)       /* the outcome is known: now the attempt is one */
#endif
  :: else
  fi
}
inline fastlost(x) {              /* the COMMIT had no answer: the blame holds, the others look again */
  if
  :: W(x)==FRESH -> if :: true -> zm[w]=zm[w]|BIT(x);
#ifdef M_UNKNOWN_DONE             /* the group's unknown COMMIT is taken for done */
                          W(x)=ACK; DONE(x)
#else
                          W(x)=LOOK
#endif
                       :: true -> W(x)=BLAMED fi
  :: else
  fi
}
inline halve(x) { if :: W(x)==FRESH -> if :: true -> W(x)=SINGLE :: W(1-(x))!=FRESH || (x)==1 -> skip fi :: else fi }

#define OURS(x) (O(x)!=0 && VERSION(x,2,t[x]+1,r[x]) && own[x]==O(x))
inline recordblame(x) {
  if
  :: W(x)==BLAMED ->
     token(x);
     if
     :: OURS(x) -> s[x]=2; t[x]=t[x]+1; W(x)=(MAX<=1 -> DEAD : BACK)
     :: !OURS(x) && UNTRIED(x) -> setrow(x,2,t[x]+1,r[x],O(x)); att[x]++; s[x]=2; t[x]=t[x]+1; W(x)=(MAX<=1 -> DEAD : BACK)
#if defined(M_BLAMED_OVER)        /* an insert that overwrites what it meets */
     :: !UNTRIED(x) && !OURS(x) ->
        setrow(x,2,1,0,O(x)); att[x]=1; s[x]=2; t[x]=1; r[x]=0; W(x)=(MAX<=1 -> DEAD : BACK)
#elif defined(M_BLAMED_COUNTS)    /* an insert that counts one more on the failed row that it meets */
     :: st[x]==2 && !UNTRIED(x) && !OURS(x) -> times[x]++; W(x)=LOOK
     :: st[x]!=2 && !UNTRIED(x) -> W(x)=LOOK
#else
     :: !UNTRIED(x) && !OURS(x) -> W(x)=LOOK        /* 1062, or no row changed: count nothing, go the row's way */
#endif
     fi;
     assert(COUNTS(x)) /* K */;
     if :: W(x)==BACK -> DONE(x) :: else fi
  :: else
  fi
}
inline lostblame(x) {             /* no answer, committed: it is repeated under the same owner */
  if
  :: W(x)==BLAMED -> token(x); if :: !OURS(x) && UNTRIED(x) -> setrow(x,2,t[x]+1,r[x],O(x)); att[x]++ :: else fi
  :: else
  fi
}

#ifdef M_CLAIM_MARKED             /* whoever read a row before it was marked claims it with others all the same */
#define ALLOWED(x) true
#else
#define ALLOWED(x) (AL(x) || st[x]!=2 || mk[x]!=2)
#endif
#define CLAIMABLE(x) (SEEN(x) && !(st[x]==0 && live[x]) && !DOOMED(x) && ALLOWED(x))
inline doclaim(x) {
  assert(s[x]!=2 || due[x]) /* B */;
#ifdef PERM
  assert(!found[x]) /* P */;
#endif
  if :: s[x]==0 -> lost[x]++; assert(lost[x]<=CRASH-crashes+PAUSES-pauses) /* X */ :: else fi;
  setrow(x,0,t[x]+1,r[x],O(x)); mk[x]=1+AL(x); att[x]++; assert(att[x]<=MAX) /* A */; assert(COUNTS(x)) /* K */
}
inline claim(x) {
  if
  :: W(x)==GROUP ->
     if
     :: O(x)!=0 && VERSION(x,0,t[x]+1,r[x]) && own[x]==O(x) -> t[x]=t[x]+1; s[x]=0; W(x)=CLAIMED    /* ours after all */
     :: else ->
        if
        :: CLAIMABLE(x) -> token(x); doclaim(x); t[x]=t[x]+1; s[x]=0; W(x)=CLAIMED
        :: else -> W(x)=BACK; DONE(x)               /* lost: it leaves the group */
        fi
     fi
  :: else
  fi
}
inline lostclaim(x) {
  if
  :: W(x)==GROUP -> token(x); if :: CLAIMABLE(x) -> doclaim(x) :: else fi
  :: else
  fi
}

inline locked(x) {                /* SELECT ... FOR UPDATE, each compared */
  if
  :: W(x)==CLAIMED -> if :: HAS(x) -> rl[x]=w+1; lk[w]=lk[w]|BIT(x) :: else -> W(x)=BACK; DONE(x) fi
  :: else
  fi
}
inline groupend(x) {
  if
  :: W(x)==CLAIMED ->
     if
     :: true -> setrow(x,1,t[x],r[x],0); effect(x); W(x)=ACK; DONE(x)
     :: true -> W(x)=FAILED
#ifdef PERM
     :: true -> W(x)=COND
#endif
     fi
  :: else
  fi
}
inline grouplost(x) {
  if
  :: W(x)==CLAIMED -> if :: true -> zm[w]=zm[w]|BIT(x); W(x)=ASK :: true -> W(x)=FAILED fi
  :: else
  fi
}
inline trouble(x) {
  if
#ifdef M_CLAIMS_FORGOTTEN         /* the claims stay; each message is looked up again */
  :: W(x)==CLAIMED -> W(x)=LOOK
#else
  :: W(x)==CLAIMED -> W(x)=UNCL
#endif
  :: else
  fi
}
inline ask(x) {                   /* a snapshot: the COMMIT may still be decided */
  if
  :: W(x)==ASK ->
     if
     :: VERSION(x,1,t[x],r[x]) -> W(x)=ACK; DONE(x)
     :: MINE(x) -> W(x)=UNCL
     :: else -> W(x)=BACK; DONE(x)
     fi
  :: else
  fi
}
inline giveback(x) {
  if
  :: W(x)==UNCL ->
     if
     :: VERSION(x,2,t[x]-1,r[x]) && own[x]==O(x) && due[x] -> s[x]=2; t[x]=t[x]-1; O(x)=0; W(x)=SINGLE   /* done already */
     :: else ->
        if
#ifdef M_UNCLAIM_KEEPS            /* given back with the attempt counted */
        :: GIVES(x) -> setrow(x,2,t[x],r[x],O(x)); due[x]=1; att[x]--; s[x]=2; O(x)=0; W(x)=SINGLE
#else
        :: GIVES(x) -> if :: own[x]==O(x) -> att[x]-- :: else fi;
                       setrow(x,2,t[x]-1,r[x],O(x)); due[x]=1; s[x]=2; t[x]=t[x]-1; O(x)=0; W(x)=SINGLE
#endif
        :: else -> W(x)=LOOK      /* applied after all, or somebody else's */
        fi
     fi;
     assert(COUNTS(x)) /* K */
  :: else
  fi
}
inline lostgiveback(x) {
  if
  :: W(x)==UNCL -> if :: MINE(x) -> setrow(x,2,t[x]-1,r[x],O(x)); due[x]=1; att[x]-- :: else fi
  :: else
  fi
}
inline recordfail(x) {
  if
  :: W(x)==FAILED ->
     if
     :: VERSION(x,2,t[x],r[x]) && own[x]==O(x) -> s[x]=2; W(x)=(t[x]>=MAX -> DEAD : BACK)
     :: else ->
        if
        :: FAILS(x) -> setrow(x,2,t[x],r[x],O(x)); s[x]=2; W(x)=(t[x]>=MAX -> DEAD : BACK)
        :: else -> W(x)=BACK      /* the lease is lost, and the attempt with it */
        fi
     fi;
     assert(COUNTS(x)) /* K */;
     if :: W(x)==BACK -> DONE(x) :: else fi
#ifdef PERM
  :: W(x)==COND ->
     if
     :: MINE(x) -> setrow(x,2,t[x],r[x],O(x)); doom[x]=1; found[x]=1; s[x]=2; W(x)=DEAD
     :: else -> W(x)=BACK; DONE(x)
     fi
#endif
  :: else
  fi
}
inline lostfail(x) { if :: W(x)==FAILED -> if :: MINE(x) -> setrow(x,2,t[x],r[x],O(x)) :: else fi :: else fi }

inline letter(x) { O(x)=0; dlq[x]++; W(x)=MARK }
inline markdead(x) {
  if
  :: SEEN(x) -> setrow(x,3,t[x],r[x],0); assert(LETTER(x)) /* D */; W(x)=ACK
  :: else -> W(x)=BACK
  fi;
  DONE(x)
}
inline exhaust(x) {
  if
  :: SEEN(x) && !live[x] -> assert(mk[x]==2) /* G */; lost[x]++; assert(lost[x]<=CRASH-crashes+PAUSES-pauses) /* X */;
                            setrow(x,2,t[x],r[x],0); s[x]=2; W(x)=DEAD
  :: else -> W(x)=BACK; DONE(x)
  fi
}
inline forgive(x) {
  if
  :: W(x)==FORG ->
     if
     :: SEEN(x) && !live[x] && HELD_BY(x) -> takeback(x); s[x]=2; t[x]=t[x]-1; O(x)=0; AL(x)=1; W(x)=SINGLE
     :: VERSION(x,2,t[x]-1,r[x]) && own[x]==O(x) && mk[x]==2 -> s[x]=2; t[x]=t[x]-1; O(x)=0; AL(x)=1; W(x)=SINGLE
     :: else -> W(x)=BACK; DONE(x)
     fi;
     assert(COUNTS(x)) /* K */
  :: else
  fi
}
inline takeback(x) {
  lost[x]++; assert(lost[x]<=CRASH-crashes+PAUSES-pauses) /* X */;
  forg[x]++; assert(forg[x]<=1) /* F */;
  setrow(x,2,t[x]-1,r[x],O(x)); mk[x]=2; due[x]=1; att[x]--
}
inline lostforgive(x) { if :: W(x)==FORG && SEEN(x) && !live[x] && HELD_BY(x) -> takeback(x) :: else fi }
inline copyout(x) { retry[x]++; W(x)=ACK
#ifdef M_COPIES_AT_ONCE           /* one confirm is taken for all of them */
  ; if :: W(1-(x))==BACK -> W(1-(x))=ACK :: else fi
#endif
}
inline acked(x) { if :: W(x)==ACK -> W(x)=OUT; assert(NOTLOST(x)) /* L */; assert(LETTER(x)) /* D */ :: else fi }

#define BEFORE(y) (NO(LOOK) && lk[w]==0)

proctype Worker(byte w) {
  byte s[2], t[2], r[2], n; bool txg;
idle:
end_idle:
  atomic {
    if
    :: mainq[0]>0 -> mainq[0]--; W(0)=LOOK; if :: mainq[1]>0 && W(1)==OUT -> mainq[1]--; W(1)=LOOK :: true fi
    :: mainq[1]>0 -> mainq[1]--; W(1)=LOOK
    fi
  }
next:
  do
  :: atomic { crashes>0 -> crashes--; goto crashed }
  :: atomic { lk[w]==0 && ANY(LOOK) -> look(0); look(1) }

  /* The fast path. */
  :: atomic { lk[w]==0 && NO(LOOK) && ANY(FRESH) && FREE(FRESH) &&
              (W(0)!=FRESH || UNTRIED(0)) && (W(1)!=FRESH || UNTRIED(1)) -> inserted(0); inserted(1) }
  :: atomic { lk[w]==0 && NO(LOOK) && ANY(FRESH) && FREE(FRESH) &&
              (W(0)==FRESH && !UNTRIED(0) || W(1)==FRESH && !UNTRIED(1)) ->   /* 1062, or fewer rows changed */
              if :: W(0)==FRESH -> W(0)=LOOK :: else fi; if :: W(1)==FRESH -> W(1)=LOOK :: else fi }
  :: atomic { lk[w]!=0 && !txg -> fastend(0); fastend(1); unlock(lk[w]) }
#ifdef M_BLAME_EARLY              /* recorded before it is known what becomes of the transaction */
  :: atomic { lk[w]!=0 && !txg && W(0)==FRESH -> token(0); setrow(0,2,1,0,O(0)); rl[0]=0; lk[w]=lk[w]&2; W(0)=BLAMED;
              if :: lk[w]==0 -> att[0]=1; W(0)=BACK; DONE(0) :: else fi }
#endif
  :: atomic { lk[w]!=0 && !txg && unk>0 && zl[w]==0 -> unk--; fastlost(0); fastlost(1);
              if :: zm[w]!=0 -> zl[w]=lk[w]; lk[w]=0 :: else -> unlock(lk[w]) fi }
  :: atomic { lk[w]!=0 && !txg && infra>0 -> infra--; unlock(lk[w]); halve(0); halve(1)
#ifdef M_BLAME_EARLY
              ; if :: W(0)==BLAMED -> W(0)=LOOK; O(0)=0 :: else fi        /* the blame is void, and stands in the row */
#endif
  }
  :: atomic { lk[w]==0 && NO(LOOK) && NO(FRESH) && ANY(BLAMED) && FREE(BLAMED) -> recordblame(0); recordblame(1) }
  :: atomic { lk[w]==0 && NO(LOOK) && NO(FRESH) && ANY(BLAMED) && FREE(BLAMED) && unk>0 -> unk--; lostblame(0); lostblame(1) }

  /* Groups of claims. */
#define SLOW (lk[w]==0 && NO(LOOK) && NO(FRESH) && NO(BLAMED))
  :: atomic { SLOW && ANY(GROUP) && NO(CLAIMED) && FREE(GROUP) -> claim(0); claim(1) }
  :: atomic { SLOW && ANY(GROUP) && NO(CLAIMED) && FREE(GROUP) && unk>0 -> unk--; lostclaim(0); lostclaim(1) }
  :: atomic { SLOW && ANY(GROUP) && NO(CLAIMED) && FREE(GROUP) && unk>0 -> unk-- }     /* not committed either */
  :: atomic { SLOW && NO(GROUP) && ANY(CLAIMED) && FREE(CLAIMED) -> locked(0); locked(1); txg=(lk[w]!=0) }
  :: atomic { lk[w]!=0 && txg -> groupend(0); groupend(1); unlock(lk[w]); txg=0 }
  :: atomic { lk[w]!=0 && txg && infra>0 -> infra--; unlock(lk[w]); txg=0; trouble(0); trouble(1) }
  :: atomic { lk[w]!=0 && txg && unk>0 && zl[w]==0 -> unk--; grouplost(0); grouplost(1); txg=0;
              if :: zm[w]!=0 -> zl[w]=lk[w]; lk[w]=0 :: else -> unlock(lk[w]) fi }
#define CLAIMS (SLOW && NO(GROUP) && NO(CLAIMED))
  :: atomic { CLAIMS && ANY(ASK) -> ask(0); ask(1) }
  :: atomic { CLAIMS && NO(ASK) && ANY(UNCL) && FREE(UNCL) -> giveback(0); giveback(1) }
  :: atomic { CLAIMS && NO(ASK) && ANY(UNCL) && FREE(UNCL) && unk>0 -> unk--; lostgiveback(0); lostgiveback(1) }
#define RECORDS (CLAIMS && NO(ASK) && NO(UNCL))
  :: atomic { RECORDS && (ANY(FAILED) || ANY(COND)) && FREE(FAILED) && FREE(COND) -> recordfail(0); recordfail(1) }
  :: atomic { RECORDS && ANY(FAILED) && FREE(FAILED) && unk>0 -> unk--; lostfail(0); lostfail(1) }
#define TAKES (RECORDS && NO(FAILED) && NO(COND))
  :: atomic { TAKES && W(0)==FORG && rl[0]==0 -> forgive(0) }
  :: atomic { TAKES && W(0)!=FORG && W(1)==FORG && rl[1]==0 -> forgive(1) }
  :: atomic { TAKES && ANY(FORG) && FREE(FORG) && unk>0 -> unk--; lostforgive(0); lostforgive(1) }
#define RESTS (TAKES && NO(FORG))
  :: atomic { RESTS && W(0)==SINGLE -> W(0)=GROUP }                /* one at a time */
  :: atomic { RESTS && W(0)!=SINGLE && W(1)==SINGLE -> W(1)=GROUP }

  /* Letters, copies, acks. */
#define SETTLES (RESTS && NO(SINGLE))
  :: atomic { SETTLES && W(0)==EXH && rl[0]==0 -> exhaust(0) }
  :: atomic { SETTLES && W(1)==EXH && rl[1]==0 -> exhaust(1) }
  :: atomic { SETTLES && NO(EXH) && W(0)==DEAD -> letter(0) }
  :: atomic { SETTLES && NO(EXH) && W(1)==DEAD -> letter(1) }
  :: atomic { SETTLES && NO(EXH) && W(0)==MARK && rl[0]==0 -> markdead(0) }
  :: atomic { SETTLES && NO(EXH) && W(1)==MARK && rl[1]==0 -> markdead(1) }
  :: atomic { SETTLES && NO(EXH) && NO(DEAD) && NO(MARK) && W(0)==BACK -> copyout(0) }
  :: atomic { SETTLES && NO(EXH) && NO(DEAD) && NO(MARK) && W(1)==BACK -> copyout(1) }
  :: atomic { SETTLES && NO(EXH) && NO(DEAD) && NO(MARK) && NO(BACK) -> acked(0); acked(1); goto idle }
  od;

crashed:                          /* whatever is in hand comes again; what is claimed stays so until its lease is over */
  atomic {
    unlock(lk[w]); txg=0;
    if :: W(0)!=OUT -> W(0)=OUT; mainq[0]++; DONE(0) :: else fi;
    if :: W(1)!=OUT -> W(1)=OUT; mainq[1]++; DONE(1) :: else fi;
    goto idle
  }
}

#if RTOK>0
proctype Replayer() {
  byte x, s, t, r;
idle:
end_idle:
  atomic {
    if
    :: rtok>0 && dlq[0]>0 -> rtok--; x=0; dlq[0]--; held=1
    :: rtok>0 && dlq[1]>0 -> rtok--; x=1; dlq[1]--; held=2
    fi;
    s=st[x]; t=times[x]; r=repl[x];
    if
    :: s==1 -> goto drop
    :: s==0 && live[x] -> goto putback
    :: else
    fi
  }
  atomic { rl[x]==0 ->
    if
    :: VERSION(x,s,t,r) && !(s==0 && live[x]) -> setrow(x,2,0,r+1,0); due[x]=1; att[x]=0; forg[x]=0
    :: else -> goto putback
    fi }
  atomic { mainq[x]++ }
drop:
  atomic { held=0; assert(NOTLOST(x)); assert(LETTER(x)); x=0; s=0; t=0; r=0; goto idle }
putback:
  atomic { held=0; dlq[x]++; x=0; s=0; t=0; r=0; goto idle }
}
#endif

#define ALIVE(x) (own[x]!=0 && (tok[x]==own[x] || tok[2+(x)]==own[x]))
inline clock(x) {
  if
  :: atomic { retry[x]>0 && !(st[x]==0 && live[x]) && !(st[x]==2 && times[x]<MAX && !due[x] && !DOOMED(x)) -> retry[x]--; mainq[x]++ }
  :: atomic { st[x]==2 && !due[x] -> due[x]=1 }
  :: atomic { st[x]==0 && live[x] && !ALIVE(x) -> live[x]=0 }
  :: atomic { st[x]==0 && live[x] && ALIVE(x) && pauses>0 -> pauses--; live[x]=0 }
  fi
}
inline applies(x) {
  if
  :: (zm[k]&BIT(x)) -> if :: st[x]==NONE -> setrow(x,1,1,0,0) :: st[x]==2 -> setrow(x,1,times[x]+1,repl[x],0)
                          :: else -> setrow(x,1,times[x],repl[x],0) fi; effect(x)
  :: else
  fi
}
proctype Env() {
  byte k;
end_env:
  do
  :: clock(0)
  :: clock(1)
  :: atomic { (zl[0]!=0 || zl[1]!=0) ->
       if :: zl[0]!=0 -> k=0 :: zl[1]!=0 -> k=1 fi;
       if :: applies(0); applies(1) :: true fi;
       zm[k]=0; unlock(zl[k]); k=0 }
  od
}

proctype Rest() {
end_wait:
  timeout -> atomic {             /* R */
    assert(COPY(0)==0 && COPY(1)==0 && held==0);
    assert(st[0]==1 || st[0]==3 && dlq[0]>0);
    assert(st[1]==1 || st[1]==3 && dlq[1]>0)
  }
}

init {
  atomic {
    mainq[0]=COPIES; mainq[1]=1;
#if START==2
    times[0]=1; times[1]=1; att[0]=1; att[1]=1; due[0]=1; due[1]=1;
#endif
    run Worker(0); run Worker(1);
#if RTOK>0
    run Replayer();
#endif
    run Env(); run Rest()
  }
}
