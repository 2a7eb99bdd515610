/*
 * edited.pml - a dead letter that a person edits: row A is the letter's, row B that of the edited message, which has a key
 * of its own. One transaction ends A and puts B into the outbox; a relay sends it, perhaps twice.
 *
 * It begins with row A dead, its letter in the dead-letter queue, and DUPS late copies. EDITS persons edit it at once,
 * REPLAYS replay it, MOVES letters are moved to the main queue by hand; CRASH deaths between any two steps. What is
 * handled succeeds.
 *
 * What is checked
 *   E  the effect of A is committed, or that of B, never both, and each once
 *   L  nothing is lost: A is applied, or dead with its letter, or open with a copy or a row that is replayed; or B is in
 *      the outbox or in the main queue, or applied
 */
#ifndef CRASH
#define CRASH 1
#endif
#ifndef DUPS
#define DUPS 1
#endif
#ifndef EDITS
#define EDITS 2
#endif
#ifndef REPLAYS
#define REPLAYS 1
#endif
#ifndef MOVES
#define MOVES 1
#endif
#define NONE 5

byte a = 3, repl;                 /* row A: status 1 success, 2 failed, 3 dead, 4 discarded; replays */
byte b = NONE;                    /* row B: NONE or 1 */
byte mainq = DUPS, dlq = 1, moved;/* copies of A, its letter, a letter moved by hand */
byte outbox, bq;                  /* B in the outbox, copies of it in the main queue */
byte hand, bhand;                 /* what the worker has of A's letter, and of B */
byte effects, crashes = CRASH, edits = EDITS, replays = REPLAYS, moves = MOVES;

#define CARRIED (a==1 || a==2 || a==3 && dlq+moved+hand>0 || a==4 && (outbox+bq+bhand>0 || b==1))

active proctype Worker() {
  bool m;
idle:
end_idle:
  atomic {
    if
    :: mainq>0 -> mainq--
    :: moved>0 -> moved--; hand=1; m=1
    :: bq>0 -> bq--; bhand=1; goto bmsg
    fi }
  if
  :: atomic { crashes>0 -> crashes--; if :: m -> moved++ :: else -> mainq++ fi }
  :: atomic { a==2 -> a=1; effects++; assert(effects<=1) /* E */ }
  :: atomic { a==3 && m && repl==0 -> a=2; repl++; mainq++ }     /* reopened; it comes again */
  :: atomic { a==1 || a==4 || a==3 && !(m && repl==0) -> skip }  /* a duplicate, or of what has ended */
  fi;
  atomic { hand=0; m=0; assert(CARRIED) /* L */; goto idle }
bmsg:
  if
  :: atomic { crashes>0 -> crashes--; bq++ }
  :: atomic { b==NONE -> b=1; effects++; assert(effects<=1) /* E */ }
  :: atomic { b==1 -> skip }
  fi;
  atomic { bhand=0; goto idle }
}

active [EDITS] proctype Editor() {
  byte s, r;
end_idle:
  atomic { edits>0 -> edits--; s=a; r=repl }
  if
  :: s!=3 -> goto done
  :: else
  fi;
  if
  :: atomic { crashes>0 -> crashes-- }                           /* before the commit: nothing is done */
#ifdef M_EDIT_APART                                              /* the outbox first, in a transaction of its own */
  :: atomic { outbox++ }
     if
     :: atomic { crashes>0 -> crashes-- }
     :: atomic { if :: a==s && repl==r -> a=4 :: else fi }
     fi
#else
#ifdef M_EDIT_ENDS                                               /* the row first */
  :: atomic { if :: a==s && repl==r -> a=4 :: else -> goto done fi }
     if
     :: atomic { crashes>0 -> crashes-- }
     :: atomic { outbox++ }
     fi
#else
#ifdef M_EDIT_BLIND                                              /* whatever the row has become */
  :: atomic { a=4; outbox=1 }
#else
  :: atomic { if :: a==s && repl==r -> a=4; outbox++ :: else fi }
#endif
#endif
#endif
  fi;
done: atomic { assert(CARRIED) /* L */ }
}

active proctype Relay() {
end_idle:
  do
  :: atomic { outbox>0 -> bq++; if :: outbox-- :: crashes>0 -> crashes-- /* confirmed, its row stays: sent again */ fi }
  od
}

active proctype Person() {
end_idle:
  do
  :: atomic { replays>0 && dlq>0 && a==3 -> replays--; a=2; repl++; dlq--; mainq++ }
  :: atomic { dlq>0 && (a==1 || a==4) -> dlq-- }                 /* swept */
  :: atomic { moves>0 && dlq>0 && repl==0 -> moves--; dlq--; moved++ }
  od
}
