/*
 * poison.pml - who pays for a crash? One process, NW lanes, NP poisonous identities (whenever their handler runs it may
 * kill the process, or fail) and NQ innocents (their handler succeeds, or fails QFAIL times, all together). A lane has
 * up to two identities in hand and takes them as the engine does: the fast path, then a group of claims, then what must
 * be alone. After a crash every delivery in hand comes back with one delivery more, and every lease has run out.
 *
 * An identity has COPIES copies, each with a count of its own; a retry copy keeps the count of what it is a copy of.
 * UNC claims are given back unrun (a dependency, a stop, a group that met trouble).
 *
 * What is checked
 *   I  no innocent is dead because of crashes
 *   C  a crash charges an innocent one attempt at most, and no innocent is ever charged more than CHARGES times
 *   K  a poison kills the process at most MAX times plus twice for each copy
 *
 * Default   as the engine is to have it. A -DM_... switch takes one rule away.
 * -DSHUT    an attempt that must be alone also waits until no transaction of the fast path runs, and keeps others out
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
#define NID (NP+NQ)
#define POISON(i) ((i)<NP)
#define NONE 5                     /* no row; 0 processing, 1 success, 2 failed, 3 dead */

byte st[NID] = NONE, times[NID];
bool over[NID];                    /* row in 0: its lease has run out */
bool mark[NID];                    /* the owner's mark: a take-over, or what follows from one that was given back */
byte taken[NID];                   /* lane+1 that has a copy in hand */
bool claimed[NID];                 /* by this process */
byte dc[NID*COPIES];               /* deliveries before this one, 2 means more than once */
byte cp[NID];                      /* which copy is in hand */
byte unc = UNC, qfail = QFAIL;
byte claims;                       /* groups, or single claims, at work in this process */
bool alone;                        /* what must be alone is at work */
bool stale[NW];                    /* the lane's process has died */

byte charged[NID];                 /* no column: crashes while claimed */
byte kills[NP];

#define OPEN(i) (taken[i]==0 && st[i]!=1 && st[i]!=3)
#define DC(i) dc[(i)*COPIES+cp[i]]

#ifdef M_TOGETHER                  /* an expired lease is claimed in a group, like anything else */
#define LONE_OVER false
#else
#define LONE_OVER true
#endif
#ifdef M_SHARED                    /* ... and one at a time, but beside other claims */
#define ENTER_ALONE true
#else
#define ENTER_ALONE (claims==0 && !alone)
#endif
#ifdef M_ALWAYS_FAST               /* a message without a row never leaves the fast path */
#define FASTWAY(i) true
#else
#define FASTWAY(i) (DC(i)<=1)
#endif
#ifdef M_BACK_ONCE                 /* what has a row and came back once still goes in a group */
#define LONE_BACK(i) (DC(i)>1)
#else
#define LONE_BACK(i) (DC(i)>0)
#endif

inline crash(p) {
  k=0;
  do
  :: k<NID ->
     if :: claimed[k] -> charged[k]++; claimed[k]=0; assert(POISON(k) || charged[k]<=CHARGES) /* C */ :: else fi;
     if :: taken[k]!=0 -> if :: DC(k)<2 -> DC(k)++ :: else fi; taken[k]=0; cp[k]=0 :: else fi;
     if :: st[k]==0 -> over[k]=1 :: else fi;
     k++
  :: else -> break
  od;
  k=0; do :: k<NW -> stale[k]=1; k++ :: else -> break od; k=0;
  stale[w]=0;
  claims=0; alone=0; kills[p]++;
  assert(kills[p]<=MAX+2*COPIES)   /* K */
}

inline applied(i) { st[i]=1; times[i]=0; mark[i]=0; over[i]=0; claimed[i]=0; taken[i]=0; cp[i]=0; way[i]=0; charged[i]=0;
                    k=0; do :: k<COPIES -> dc[(i)*COPIES+k]=0; k++ :: else -> break od; k=0 }
inline failed(i,T) { st[i]=2; times[i]=T; mark[i]=0; claimed[i]=0; taken[i]=0; cp[i]=0; way[i]=0 }
inline dead(i) { st[i]=3; times[i]=0; mark[i]=0; over[i]=0; taken[i]=0; cp[i]=0; way[i]=0 }
inline giveback(i,W) { st[i]=2; times[i]--; claimed[i]=0; way[i]=W; if :: W==0 -> taken[i]=0; cp[i]=0 :: else fi }

#define BEAT stale[w] -> stale[w]=0; goto gone

proctype Lane(byte w) {
  byte i, k, way[NID];             /* 1 fast, 2 group, 3 alone, 4 single */
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
       :: st[i]==NONE && FASTWAY(i) -> way[i]=1
       :: st[i]==NONE && !FASTWAY(i) -> way[i]=3
       :: st[i]==0 && times[i]>=MAX -> assert(POISON(i)) /* I */; dead(i)
       :: st[i]==0 && times[i]<MAX && LONE_OVER -> way[i]=3
       :: st[i]==0 && times[i]<MAX && !LONE_OVER -> way[i]=2
       :: st[i]==2 && times[i]>=MAX -> dead(i)
       :: st[i]==2 && times[i]<MAX && (mark[i] || LONE_BACK(i)) -> way[i]=3
       :: st[i]==2 && times[i]<MAX && !mark[i] && !LONE_BACK(i) -> way[i]=2
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
#ifdef SHUT
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && !alone -> claims++ }
  fi;
#endif
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] ->
       do
       :: i<NID && way[i]==1 && POISON(i) -> if :: crash(i); goto gone :: failed(i,1) fi; i++
       :: i<NID && way[i]==1 && !POISON(i) -> if :: applied(i) :: qfail>0 -> qfail--; failed(i,1) fi; i++
       :: i<NID && way[i]!=1 -> i++
       :: else -> i=0; break
       od;
#ifdef SHUT
       claims--
#endif
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
       :: i<NID && way[i]==2 -> mark[i]=over[i]; over[i]=0; st[i]=0; times[i]++; claimed[i]=1; i++
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
    do :: i<NID && way[i]!=3 && way[i]!=4 -> i++ :: else -> break od;
    if
    :: i>=NID -> i=0; goto idle
    :: else
    fi
  }
  if
  :: atomic { BEAT }
  :: atomic { !stale[w] && way[i]==3 && ENTER_ALONE -> alone=1; claims++;
#ifdef M_UNMARKED                  /* a take-over that is given back looks like anything else */
       mark[i]=0;
#else
       mark[i]=(mark[i]||over[i]);
#endif
       over[i]=0; st[i]=0; if :: st[i]==NONE -> times[i]=1 :: else -> times[i]++ fi; claimed[i]=1 }
  :: atomic { !stale[w] && way[i]==4 && !alone -> claims++; st[i]=0; times[i]++; claimed[i]=1 }
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

init { atomic { byte j; do :: j<NW -> run Lane(j); j++ :: else -> break od } }
