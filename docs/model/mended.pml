/*
 * mended.pml - a letter whose body a person mends: one key, two bodies. 0 is the former body, which is wrong (its handler
 * fails for good), 1 the mended one. Row A is the key's, with the body that it holds; row C is the identity under which a
 * copy with the former body is filed while the key has another one (rollbackd.conflict): it never reaches the handler.
 *
 * It begins with row A dead, body 0, its letter in the dead-letter queue, and DUPS late copies of the former body.
 * MENDS replays --from a file with the mended body; REPLAYS replays of letters out of the queue; MOVES letters moved to
 * the main queue by hand; CRASH deaths between any two steps.
 *
 * What is checked
 *   E  the effect is committed at most once, and never with the former body once the row has the mended one
 *   L  nothing is lost: the key is applied or dead with its letter, or a copy, a letter, or a row in 2 (which holds the
 *      mended body, so that the same file replays it) carries it on
 *   F  once the mended body is committed no letter of the former one is made, and none is replayed
 */
#ifndef CRASH
#define CRASH 1
#endif
#ifndef DUPS
#define DUPS 1
#endif
#ifndef MENDS
#define MENDS 1
#endif
#ifndef REPLAYS
#define REPLAYS 1
#endif
#ifndef MOVES
#define MOVES 1
#endif
#define NONE 5

byte a = 3, body, repl;           /* row A: status, body, replays */
byte c = NONE;                    /* row C: NONE, 3 or 4 */
byte mainq[2], dlq[2];            /* copies and letters by body */
byte moved;                       /* letters of body 0 in the main queue, by hand; made before any reopening */
byte inhand, held;                /* one of those in the worker's hand; a letter in the replayer's */
byte effects;
byte crashes = CRASH, mends = MENDS, replays = REPLAYS, moves = MOVES;

inline effect(b) { effects++; assert(effects<=1 && (b)==body) /* E */ }
#define CARRIED (a==1 || a==2 || a==3 && dlq[body]+moved+inhand+held>0)

/* The daemon, a delivery at a time; what it does to one row is one step, a letter is confirmed before its row says so. */
proctype Worker() {
  byte b; bool m;
idle:
end_idle:
  atomic {
    if
    :: mainq[0]>0 -> mainq[0]--; b=0
    :: mainq[1]>0 -> mainq[1]--; b=1
    :: moved>0 -> moved--; inhand=1; b=0; m=1
    fi }
  if
  :: atomic { crashes>0 -> crashes--; goto again }
  :: atomic { a!=NONE && body!=b ->                 /* another body has the key */
       if
       :: c!=NONE -> goto ack                       /* filed or discarded already */
       :: else -> skip
       fi }
  :: atomic { body==b && (a==1 || a==4) -> goto ack }
  :: atomic { body==b && a==3 && !(m && repl==0) -> goto ack }
  :: atomic { body==b && a==3 && m && repl==0 -> a=2; repl++; goto again }
  :: atomic { body==b && a==2 && b==1 -> if :: a=1; effect(1); goto ack :: goto letter fi }
  :: atomic { body==b && a==2 && b==0 -> goto letter }
  fi;
  if                              /* a conflict: letter, then row C */
  :: atomic { crashes>0 -> crashes--; goto again }
  :: atomic { dlq[b]++ }
  fi;
  atomic { if :: c==NONE -> c=3 :: else fi; goto ack }
letter:
  if
  :: atomic { crashes>0 -> crashes--; goto again }
  :: atomic { dlq[b]++ }
  fi;
  atomic { if :: a==2 && body==b -> a=3 :: else -> goto again fi }
ack:
  atomic { inhand=0; assert(CARRIED) /* L */; b=0; m=0; goto idle }
again:
  atomic { inhand=0; if :: m -> moved++ :: else -> mainq[b]++ fi; b=0; m=0; goto idle }
}

/* dlq replay --from FILE, the line's body mended. */
proctype Mender() {
  byte s, r, h;
end_idle:
  do
  :: atomic { mends>0 -> mends--; s=a; r=repl; h=body }
     if
     :: s==2 || s==3 ->
        if
        :: atomic { crashes>0 -> crashes-- }
        :: atomic { true ->                         /* one transaction: the body, the reopening, the former identity */
             if
#ifdef M_MEND_BLIND               /* whatever the row has become */
             :: true ->
#else
             :: a==s && repl==r && body==h ->
#endif
                                       a=2; repl++; body=1;
#ifdef M_MEND_FORGOT              /* the identity of the former body is not ended */
                                       skip
#else
                                       if :: h==0 && c==NONE -> c=4 :: else fi
#endif
                                       ; goto publish
#ifndef M_MEND_BLIND
             :: else -> skip
#endif
             fi }
        fi
     :: else -> skip
     fi;
     goto done;
publish:
     if
     :: atomic { crashes>0 -> crashes-- }           /* the row says 2 and has the mended body: the file replays it */
     :: atomic { mainq[1]++ }
     fi;
done: atomic { s=0; r=0; h=0 }
  od
}

/* dlq replay: a letter out of the queue. */
proctype Replayer() {
end_idle:
  do
  :: atomic { replays>0 && dlq[0]>0 -> replays--; dlq[0]--; held=1 }
     if
     :: atomic { crashes>0 -> crashes--; held=0; dlq[0]++ }
     :: atomic { body==0 && a==3 -> a=2; repl++; held=0; mainq[0]++ }
     :: atomic { body==0 && a!=3 -> held=0; dlq[0]++ }
     :: atomic { body==1 && c==4 -> held=0; assert(CARRIED) }    /* stale: dropped */
     :: atomic { body==1 && c!=4 -> assert(c==3 && false) /* F: it would be published as a message of its own */ }
     fi
  :: atomic { moves>0 && dlq[0]>0 && repl==0 -> moves--; dlq[0]--; moved++ }
  od
}

init { atomic { dlq[0]=1; mainq[0]=DUPS; run Worker(); run Mender(); run Replayer() } }
