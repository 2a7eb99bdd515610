/*
 * poison.pml - who pays for a crash? One process, NW lanes, NP poisonous identities (whenever their handler runs it may
 * kill the process, or fail) and NQ innocents (their handler succeeds, or fails QFAIL times, all together). A lane has
 * up to two identities in hand and takes them as the engine does: the fast path, then a group of claims, then one at a
 * time. After a death every delivery in hand comes back with one delivery more, and every lease has run out.
 *
 * An identity has COPIES copies, each with a count of its own; a retry copy keeps the count of what it is a copy of.
 * UNC claims are given back unrun (a dependency, a stop, a group that met trouble). KILL deaths come from outside,
 * between any two steps. REOPEN times a poison that is dead is replayed, unmarked.
 *
 * Turns: the fast path, groups and single claims run beside those of other lanes. What may have killed a process (a
 * take-over, a row with the mark, an attempt that was taken back) runs while nothing else does. What was claimed beside
 * others is taken over in a group. When the process dies again, that attempt is taken back, and made alone.
 * -DCALLS: the handler's effect is outside MySQL, so there is no fast path: new messages are claimed in groups too.
 *
 * What is checked
 *   I  no innocent is dead because its last attempt never came back, unless it was killed from outside
 *   C  no innocent is ever charged more than CHARGES attempts by the deaths of others
 *   K  a poison kills the process at most KILLS times in each opening
 *   F  an attempt is taken back once (FORGIVES)
 *
 * Default = the protocol. A -DM_... switch takes one rule away; see run.sh.
 */
#ifndef MAX
#define MAX 5
#endif
#ifndef NP
#define NP 1
#endif
#ifndef NQ
#define NQ 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#ifndef UNC
#define UNC 0
#endif
#ifndef QFAIL
#define QFAIL 0
#endif
#ifndef CHARGES
#define CHARGES 1
#endif
#ifndef NW
#define NW 2
#endif
#ifndef REOPEN
#define REOPEN 0
#endif
#ifndef KILL
#define KILL 0
#endif
#ifndef KILLS          /* two in the fast path for each copy, then one for each attempt */
#define KILLS (MAX+2*COPIES)
#endif
#ifndef FORGIVES
#define FORGIVES 1
#endif
#define NID (NP+NQ)
#define POISON(i) ((i)<NP)
#define NONE 5                     /* no row; 0 processing, 1 success, 2 failed, 3 dead */

byte st[NID] = NONE, times[NID];
bool over[NID];                    /* row in 0: its lease has run out */
byte mark[NID];                    /* the owner's: 1 claimed beside others, 2 by itself, 3 taken over in a
                                      group; 2 stays until success, and 3 becomes 2 */
byte taken[NID];                   /* lane+1 that has a copy in hand */
bool claimed[NID];                 /* by this process */
byte dc[NID*COPIES];               /* deliveries before this one, 2 means more than once */
byte cp[NID];                      /* which copy is in hand */
byte unc = UNC, qfail = QFAIL;
byte claims;                       /* groups, or single claims, at work in this process */
bool alone;                        /* what must be alone is at work */
bool stale[NW];                    /* the lane's process has died */

byte charged[NID];                 /* no column: deaths of others while claimed, less what was taken back */
byte forgiven[NID];                /* no column */
bool hit[NID];                     /* no column: killed from outside while claimed */
byte kills[NP];
#if KILL>0
byte kill = KILL;
#endif

#define OPEN(i) (taken[i]==0 && st[i]!=1 && st[i]!=3)
#define DC(i) dc[(i)*COPIES+cp[i]]

#ifdef M_TOGETHER                  /* an expired lease is claimed in a group, like anything else */
#define TAKEOVER 2
#else
#define TAKEOVER 3
#endif
#ifdef M_SHARED                    /* what must be alone runs one at a time, but beside others */
#define ENTER_ALONE true
#else
#define ENTER_ALONE (claims==0 && !alone)
#endif
#ifdef M_OPEN                      /* the fast path runs beside what must be alone */
#define ENTER_FAST true
#else
#define ENTER_FAST (!alone)
#endif
#ifdef M_ALWAYS_FAST               /* a message without a row never leaves the fast path */
#define FASTWAY(i) true
#else
#define FASTWAY(i) (DC(i)<=1)
#endif
#ifdef M_AGAIN_FAST                /* a reopened one does not */
#define AGAINWAY(i) true
#else
#define AGAINWAY(i) FASTWAY(i)
#endif
#ifdef CALLS
#define NEWWAY 2
#else
#define NEWWAY 1
#endif
#ifdef M_TAKEN_UNMARKED            /* such a group says no more than another one */
#define TAKENMARK 1
#elif defined(M_TAKEN_ALONE)       /* or that each of it was taken over by itself */
#define TAKENMARK 2
#else
#define TAKENMARK 3
#endif
#ifdef M_BACK_TOGETHER             /* what has a row goes in a group however often it came back */
#define BACK(i) false
#else
#define BACK(i) (DC(i)>1)
#endif
#ifdef M_MARKED_BESIDE             /* a row with the mark is claimed by itself, but beside other lanes */
#define MARKED 4
#else
#define MARKED 3
#endif
#ifdef M_GROUP_UNMARKED            /* claims of a group do not say that they were made beside others */
#define GROUPMARK 0
#else
#define GROUPMARK 1
#endif
#ifdef M_SINGLE_UNMARKED           /* nor do single claims */
#define SINGLEMARK 0
#else
#define SINGLEMARK 1
#endif
#if defined(M_NO_FORGIVE)          /* whatever the mark, an expired lease without attempts left is the end */
#define TAKEN_BACK(i) false
#elif defined(M_FORGIVE_ALWAYS)    /* also what was claimed by itself */
#define TAKEN_BACK(i) true
#else
#define TAKEN_BACK(i) (mark[i]==1)
#endif

/* The process dies, by poison p or (p==NID) from outside. */
inline dies(p) {
  k=0;
  do
  :: k<NID ->
     if
     :: claimed[k] && p<NID -> claimed[k]=0;
        if :: !POISON(k) && mark[k]!=3 -> charged[k]++; assert(charged[k]<=CHARGES) /* C */ :: else fi
     :: claimed[k] && p>=NID -> claimed[k]=0; hit[k]=!POISON(k)
     :: else
     fi;
     if :: taken[k]!=0 -> if :: DC(k)<2 -> DC(k)++ :: else fi; taken[k]=0; cp[k]=0 :: else fi;
     if :: st[k]==0 -> over[k]=1 :: else fi;
     k++
  :: else -> break
  od;
  k=0; do :: k<NW -> stale[k]=1; k++ :: else -> break od; k=0;
  claims=0; alone=0
}
inline crash(p) { dies(p); stale[w]=0; kills[p]++; assert(kills[p]<=KILLS) /* K */ }

#define UNMARK(i) if :: mark[i]==1 -> mark[i]=0 :: mark[i]==3 -> mark[i]=2 :: else fi
inline applied(i) { st[i]=1; times[i]=0; mark[i]=0; forgiven[i]=0; hit[i]=0; over[i]=0; claimed[i]=0; taken[i]=0; cp[i]=0; way[i]=0; charged[i]=0;
                    k=0; do :: k<COPIES -> dc[(i)*COPIES+k]=0; k++ :: else -> break od; k=0 }
inline failed(i,T) { st[i]=2; times[i]=T; UNMARK(i); claimed[i]=0; taken[i]=0; cp[i]=0; way[i]=0 }
inline dead(i) { st[i]=3; times[i]=0; mark[i]=0; forgiven[i]=0; hit[i]=0; over[i]=0; taken[i]=0; cp[i]=0; way[i]=0 }
inline giveback(i,W) { st[i]=2; times[i]--; UNMARK(i); claimed[i]=0; way[i]=W; if :: W==0 -> taken[i]=0; cp[i]=0 :: else fi }

inline claim(m) {
#ifdef M_UNMARKED                  /* a take-over leaves no mark: given back, it looks like anything else */
  mark[i]=0;
#else
  mark[i]=(m);
#endif
  over[i]=0; hit[i]=0; if :: st[i]==NONE -> times[i]=1 :: else -> times[i]++ fi; st[i]=0; claimed[i]=1
}

#define BEAT stale[w] -> stale[w]=0; goto gone

proctype Lane(byte w) {
  byte i, k, way[NID];             /* 1 fast, 2 group, 3 alone, 4 single, 5 alone, taken back, 6 taken over */
  bool some;
idle:
end_idle:
  atomic {
    if
    :: OPEN(0) -> i=0
    :: OPEN(1) -> i=1
#if NP+NQ>2
    :: OPEN(2) -> i=2
#endif
#if NP+NQ>3
    :: OPEN(3) -> i=3
#endif
    fi;
    stale[w]=0;
    taken[i]=w+1;
#if COPIES>1
    if :: cp[i]=0 :: cp[i]=1 fi;
#endif
    if
    :: true -> i=0
    :: OPEN(0) -> taken[0]=w+1; i=0
    :: OPEN(1) -> taken[1]=w+1; i=1
#if NP+NQ>2
    :: OPEN(2) -> taken[2]=w+1; i=2
#endif
    fi;
#if COPIES>1
    if :: taken[i]==w+1 -> if :: cp[i]=0 :: cp[i]=1 fi :: else fi;
#endif
    i=0;
    do                             /* look up */
    :: i<NID && taken[i]==w+1 ->
       if
       :: st[i]==NONE && FASTWAY(i) -> way[i]=NEWWAY
       :: st[i]==NONE && !FASTWAY(i) -> way[i]=4
       :: st[i]==0 && times[i]>=MAX && mark[i]!=3 && TAKEN_BACK(i) -> way[i]=5
       :: st[i]==0 && times[i]>=MAX && mark[i]!=3 && !TAKEN_BACK(i) -> assert(POISON(i) || hit[i]) /* I */; dead(i)
       :: st[i]==0 && mark[i]==3 -> way[i]=5
       :: st[i]==0 && times[i]<MAX && mark[i]!=3 && !(mark[i]==1 && !BACK(i)) -> way[i]=TAKEOVER
       :: st[i]==0 && times[i]<MAX && mark[i]==1 && !BACK(i) -> way[i]=6
       :: st[i]==2 && times[i]>=MAX -> dead(i)
       :: st[i]==2 && times[i]<MAX && mark[i]==2 -> way[i]=MARKED
       :: st[i]==2 && times[i]<MAX && mark[i]!=2 && BACK(i) -> way[i]=4
       :: st[i]==2 && times[i]<MAX && mark[i]!=2 && !BACK(i) -> way[i]=2
       :: st[i]==2 && times[i]==0 && mark[i]!=2 && AGAINWAY(i) -> way[i]=NEWWAY   /* reopened, or given back */
       fi;
       i++
    :: i<NID && taken[i]!=w+1 -> i++
    :: else -> i=0; break
    od
  }

fast:
  atomic {
    some=0; do :: i<NID -> some=(some||way[i]==1); i++ :: else -> break od; i=0;
    if
    :: !some -> goto group
    :: else
    fi
  }
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && ENTER_FAST -> claims++ }
  fi;
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] ->
       do
       :: i<NID && way[i]==1 && POISON(i) -> if :: crash(i); goto gone :: failed(i,1) fi; i++
       :: i<NID && way[i]==1 && !POISON(i) -> if :: applied(i) :: qfail>0 -> qfail--; failed(i,1) fi; i++
       :: i<NID && way[i]!=1 -> i++
       :: else -> i=0; break
       od;
       claims--
     }
  fi;

group:
  atomic {
    some=0; do :: i<NID -> some=(some||way[i]==2); i++ :: else -> break od; i=0;
    if
    :: !some -> goto rest
    :: else
    fi
  }
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && !alone -> claims++;
       do
       :: i<NID && way[i]==2 -> claim(GROUPMARK); i++
       :: i<NID && way[i]!=2 -> i++
       :: else -> i=0; break
       od }
  fi;
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] ->
       do
       :: i<NID && way[i]==2 && POISON(i) -> if :: crash(i); goto gone :: failed(i,times[i]) fi; i++
       :: i<NID && way[i]==2 && !POISON(i) -> if :: applied(i) :: qfail>0 -> qfail--; failed(i,times[i]) fi; i++
       :: i<NID && way[i]!=2 -> i++
       :: else -> i=0; break
       od;
       claims-- }
  :: atomic { !stale[w] && unc>0 -> unc--;           /* trouble: all claims given back, each goes the single way */
       do
       :: i<NID && way[i]==2 -> giveback(i,4); i++
       :: i<NID && way[i]!=2 -> i++
       :: else -> i=0; break
       od;
       claims-- }
  fi;

rest:
  atomic {
    some=0; do :: i<NID -> some=(some||way[i]==6); i++ :: else -> break od; i=0;
    if
    :: !some -> goto single
    :: else
    fi
  }
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && ENTER_ALONE -> alone=1; claims++;
       do
       :: i<NID && way[i]==6 -> claim(TAKENMARK); i++
       :: i<NID && way[i]!=6 -> i++
       :: else -> i=0; break
       od }
  fi;
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] ->
       do
       :: i<NID && way[i]==6 && POISON(i) -> if :: crash(i); goto gone :: failed(i,times[i]) fi; i++
       :: i<NID && way[i]==6 && !POISON(i) -> if :: applied(i) :: qfail>0 -> qfail--; failed(i,times[i]) fi; i++
       :: i<NID && way[i]!=6 -> i++
       :: else -> i=0; break
       od;
       claims--; alone=0 }
  :: atomic { !stale[w] && unc>0 -> unc--;
       do
       :: i<NID && way[i]==6 -> giveback(i,3); i++
       :: i<NID && way[i]!=6 -> i++
       :: else -> i=0; break
       od;
       claims--; alone=0 }
  fi;

single:
  atomic {
    do :: i<NID && way[i]<3 -> i++ :: else -> break od;
    if
    :: i>=NID -> i=0; goto idle
    :: else
    fi
  }
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && way[i]==5 && ENTER_ALONE -> alone=1; claims++; st[i]=2; times[i]--; over[i]=0;
       if :: charged[i]>0 && mark[i]==1 -> charged[i]-- :: else fi; mark[i]=2;
       forgiven[i]++; assert(forgiven[i]<=FORGIVES) /* F */; way[i]=3 }
     if
     :: atomic { BEAT }
     :: atomic { !stale[w] -> claim(2) }
     fi
  :: atomic { !stale[w] && way[i]==3 && ENTER_ALONE -> alone=1; claims++; claim(2) }
  :: atomic { !stale[w] && way[i]==4 && !alone -> claims++; claim((mark[i]==2 -> 2 : SINGLEMARK)) }
  fi;
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && POISON(i) -> crash(i); goto gone }
  :: atomic { !stale[w] && POISON(i) -> failed(i,times[i]) }
  :: atomic { !stale[w] && !POISON(i) -> applied(i) }
  :: atomic { !stale[w] && !POISON(i) && qfail>0 -> qfail--; failed(i,times[i]) }
  :: atomic { !stale[w] && unc>0 -> unc--; giveback(i,0) }   /* a retry copy, which keeps its count */
  fi;
  atomic {
    if :: stale[w] -> stale[w]=0; goto gone :: else fi;
    claims--; alone=0; i=0; goto rest
  }
gone:
  atomic { i=0; k=0; some=0; do :: i<NID -> way[i]=0; i++ :: else -> break od; i=0; goto idle }
}

#if KILL>0
proctype Outside() {
  byte k;
end_outside:
  do
  :: atomic { kill>0 -> kill--; dies(NID) }
  od
}
#endif

#if REOPEN>0
proctype Person() {
  byte left=REOPEN, k;
end_person:
  do
  :: atomic { left>0 && st[0]==3 && taken[0]==0 -> left--; st[0]=2; kills[0]=0;
       do :: k<COPIES -> dc[k]=0; k++ :: else -> k=0; break od }
  od
}
#endif

init {
  atomic {
    byte j; do :: j<NW -> run Lane(j); j++ :: else -> break od;
#if KILL>0
    run Outside();
#endif
#if REOPEN>0
    run Person();
#endif
    skip
  }
}
