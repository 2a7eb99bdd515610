/*
 * ended.pml - a handler that may end the transaction which it was given: N messages in one batch, as a Promela model.
 *
 * One call of the handler may end the transaction, by a text that the guard reads (COMMIT, DDL, ROLLBACK) or by one
 * that it cannot read (CALL), before or after its effect, and then succeed or fail. What comes after the end commits by
 * itself. FAILS more calls fail by themselves. The process dies CRASH times, and each message is sent COPIES times, one
 * after another.
 *
 * What is checked
 *   E  the effect of a message is committed at most once
 *   S  a message that its row calls success, or whose delivery was acked as applied, has its effect
 *   N  nobody but the message whose call ended the transaction is made a letter because of that, and that one is
 *   G  what the guard refuses has no effect
 *
 * Default = the protocol as the code has it. A -DM_... switch takes one rule away; see run.sh.
 *
 * A death between the end of the transaction by a CALL and the engine's look at it is out, but with -DM_DIES: nothing
 * but the session knows of that end.
 */
#ifndef N
#define N 3
#endif
#ifndef CRASH
#define CRASH 1
#endif
#ifndef FAILS
#define FAILS 1
#endif
#ifndef COPIES
#define COPIES 2
#endif
#ifdef M_DIES                      /* no rule: the process dies in a call, behind its own COMMIT */
#define SEEN true
#else
#define SEEN (open || !ends)
#endif

mtype = { none, processing, success, dead };
mtype row[N] = none;
byte effects[N];
bool settled[N];                  /* this copy is acked */
byte copies = COPIES, crashes = CRASH, fails = FAILS;

/* The message whose call may end the transaction. */
byte who;
bool text, commits, early, fail;  /* by a text that is read; by a COMMIT; before its effect; and fails afterwards */

/* The transaction. */
bool open;                        /* the one that the engine began is the session's */
bool rows[N], writes[N];          /* what it would commit */

inline begin() { open=1; ends=0 }
inline over(yes) {                /* COMMIT or ROLLBACK of what is open */
  j=0;
  do
  :: j<N -> if :: yes && rows[j] -> row[j]=success :: else fi;
            if :: yes && writes[j] -> effects[j]++; assert(effects[j]<=1) /* E */ :: else fi;
            rows[j]=0; writes[j]=0; j++
  :: else -> break
  od; j=0; open=0
}
inline effect(x) { if :: open -> writes[x]=1 :: else -> effects[x]++; assert(effects[x]<=1) /* E */ fi }
inline mark(x)   { if :: open -> rows[x]=1 :: else -> row[x]=success fi }
inline end()     { if :: open -> over(commits) :: else fi; ends=1 }

/* What the session does when the handler's call for x is let through; ok says whether the call succeeds. */
inline call(x) {
  ok=1;
  if
  :: x==who -> if
               :: early -> end(); effect(x)
               :: else -> effect(x); end()
               fi; ok=!fail
  :: x!=who -> if
               :: effect(x)
               :: fails>0 -> fails--; ok=0
               fi
  fi
}
#define x_is_text(x) (x==who && text)
#define x_is_call(x) (x==who && !text)
#define KILL :: atomic { crashes>0 && SEEN -> crashes--; if :: open -> over(false) :: else fi; goto next }

proctype Worker() {
  byte i, j; bool ok, ends, alone[N];

next:                             /* a new process knows nothing but the rows; a lease that nobody holds has ended */
  atomic { i=0; do :: i<N -> alone[i]=0; i++ :: else -> break od; i=0 }
round:
  /* Who has a row goes its row's way. */
  atomic { i=0;
    do
    :: i<N -> if :: row[i]==success || row[i]==dead -> settled[i]=1 :: row[i]==processing -> alone[i]=1 :: else fi; i++
    :: else -> break
    od; i=0 }

fast:                             /* rows as success, the calls one after another, COMMIT */
  atomic { begin(); i=0; do :: i<N -> rows[i]=(!settled[i] && !alone[i] && row[i]==none); i++ :: else -> break od; i=0 }
  do
  KILL
  :: atomic { i<N && !(!settled[i] && !alone[i] && row[i]==none) -> i++ }
  :: atomic { i<N && !settled[i] && !alone[i] && row[i]==none ->
#ifndef M_NO_GUARD                 /* every text is sent */
       if
       :: x_is_text(i) -> over(false); alone[i]=1; goto letter  /* refused, before it is sent */
#ifndef M_FAST_CALL                /* texts that nobody can read go the fast way */
       :: x_is_call(i) -> over(false); alone[i]=1; goto round                 /* it needs the claimed way */
#endif
       :: else
       fi;
#endif
       call(i);
       if
       :: !ok -> if :: open -> over(false) :: else fi;
                 alone[i]=1; goto round                                       /* blamed: the others begin anew */
       :: else -> i++
       fi }
  :: atomic { i==N -> break }
  od;
#ifndef M_NO_PROOF                 /* nobody asks whether it is still the same transaction */
  if
  KILL
  :: atomic { !open -> goto unknown }
  :: atomic { open -> skip }
  fi;
#endif
  if
  KILL
  :: atomic { true -> if :: open -> over(true) :: else fi;                    /* COMMIT answers OK, whatever it ends */
       i=0;
       do
       :: i<N -> if :: !settled[i] && !alone[i] -> settled[i]=1; assert(effects[i]==1) /* S */ :: else fi; i++
       :: else -> break
       od; i=0 }
  fi;

claimed:                          /* one after another: claim, hold, effect, seal */
  do
  KILL
  :: atomic { i<N && (settled[i] || !alone[i]) -> i++ }
  :: atomic { i<N && !settled[i] && alone[i] -> row[i]=processing; begin() }
     if
     KILL
     :: atomic { true ->
          if
#ifndef M_NO_GUARD
          :: x_is_text(i) -> over(false); goto letter
#endif
          :: else -> call(i)
          fi }
     fi;
     if
     KILL
#ifndef M_NO_PROOF
     :: atomic { !open ->
#ifdef M_UNKNOWN_AGAIN            /* what is unknown is a failed attempt */
          if :: ok=0 :: goto letter fi
#else
          goto letter
#endif
        }
     :: atomic { open -> skip }
#else
     :: atomic { true -> skip }
#endif
     fi;
     if
     KILL
     :: atomic { ok -> mark(i); if :: open -> over(true) :: else fi; settled[i]=1; assert(effects[i]==1) /* S */ }
     :: atomic { !ok -> if :: open -> over(false) :: else fi; ends=0 }        /* a failed attempt: again */
     fi
  :: atomic { i==N -> break }
  od;
  goto done;

letter:                           /* of i */
  atomic { row[i]=dead; settled[i]=1; ends=0; open=0;
           assert(i==who);                                                    /* N */
           assert(!x_is_text(i) || effects[i]==0);                            /* G */
           goto round }
unknown:                          /* the fast path's transaction was ended: whoever had begun is a letter */
  atomic { i=0;
    do
    :: i<N -> if :: !settled[i] && !alone[i] -> row[i]=dead; settled[i]=1; assert(i==who) /* N */ :: else fi; i++
    :: else -> break
    od; i=0; ends=0; goto round }

done:
  atomic { i=0;
    do
    :: i<N && !settled[i] -> goto round
    :: i<N && settled[i] -> assert(row[i]!=success || effects[i]==1); i++     /* S */
    :: else -> break
    od; i=0;
    assert(row[who]==dead);                                                   /* N */
    copies--;
    if
    :: copies>0 -> do :: i<N -> settled[i]=0; i++ :: else -> break od; goto next /* the producer sends all again */
    :: else
    fi }
}

init {
  atomic {
    if :: who=0 :: who=1 :: who=N-1 fi;
    if :: text=1 :: skip fi; if :: commits=1 :: skip fi; if :: early=1 :: skip fi; if :: fail=1 :: skip fi;
    run Worker()
  }
}
