/*
 * outbox.pml - one key of the outbox: what waits in its row is cancelled in time, or sent at least once. For Spin 6.
 *
 * What is modelled
 *   row       one key; in it the first message, or one that was put later (the same body, or another); who sent it
 *             perhaps (own; 0: surely nobody); parked. A lock is held to the end of its transaction.
 *   time      next_at comes sooner or later, and under a living claim only by a fault
 *   producer  twice: reserves if nobody has, and puts, in one transaction, which may roll back
 *   payment   PAYS times: Cancel and Confirm in one transaction, or Cancel alone; commits or rolls back
 *   relays    NW: claim (one short transaction), publish, settle. A claim's name is nobody else's: NAME while a relay
 *             has it in hand, GONE ever after. A lost answer to its COMMIT is a death: what was claimed is not sent.
 *   broker    confirms, returns (RET: surely in no queue), or neither (a nack, a lost connection): that copy comes now,
 *             later, or never; the relay leaves it, or sends again under the same claim
 *   consumer  its log by key, the reservation, and an event, in one transaction; its ack may be lost
 *   person    has what is parked tried again
 *   faults    FAULTS: deaths of a relay between any two steps, leases that end under a living owner, no answers of the
 *             broker
 *
 * What is checked
 *   L  what was put, committed and not cancelled in time is sent, and nothing else in its place
 *   N  what was cancelled in time was never sent and never is
 *   S  the stock is given back or deducted, once; after a timeout it is not left reserved
 *   E  the effect happens once if anything was sent, else never
 *   V  the event is put exactly when stock is given back
 *   C  no row is left
 *   T  whatever is sent once more costs a fault
 *
 * Default = the protocol. A -DM_... switch takes one rule away; see run.sh.
 */
#ifndef NW
#define NW 2
#endif
#ifndef PAYS
#define PAYS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef RET
#define RET 1
#endif
#define TOMB 3
#define CANCEL 8
#define GONE 9
#ifdef M_SAME_NAME                /* the relay's name, not the claim's */
byte hands;
#define NAME 1
#define FREE (hands==0)
#else
#define NAME (w+1)
#define FREE true
#endif

/* The row, the reservation, the queue. */
byte row, own; bool parked;
byte rl, sl;                      /* locks: who holds the row and the reservation */
mtype = { none, reserved, released, deducted, confirmed, returned, unknown };
mtype stock = none;
byte body[4];                     /* of message 1 and 2 */
bool q[4];                        /* in the queue; how many copies makes no difference */
byte wire[4];                     /* copies of which nobody knows */
byte applied;                     /* the consumer log: the body that had its effect */
byte faults = FAULTS, ret = RET;
/* No columns. */
byte want[3];                     /* put p was committed, and relies on this message */
byte sent[4]; bool intime[4];
byte effects, back, took, events;

#ifdef M_LEASE_NEVER              /* a claimed row never comes up again */
#define DUE (row!=0 && !parked && own==0)
#else
#define DUE (row!=0 && !parked && (!LIVING || faults>0))
#endif
#ifdef M_NO_LEASE                 /* the claim leaves next_at as it is */
#define LIVING false
#else
#define LIVING (own!=0 && own<CANCEL)
#endif

inline arrive(g) {
  q[g]=1; sent[g]++;
  assert(!intime[g]);                                                         /* N */
  assert(sent[g]<=1+FAULTS-faults)                                            /* T */
}
inline gone() { row=0; own=0; parked=0 }

proctype Producer() {
  byte p = 1, on;
next:
  /* INSERT ... ON DUPLICATE KEY UPDATE, which locks what it meets */
#ifdef M_PUT_LOOKED               /* what waits is seen without a lock */
  if
  :: atomic { rl==0 && (row==0 || body[row]!=body[p]) -> rl=1 }
  :: atomic { row!=0 && body[row]==body[p] -> on=row }
  fi;
#else
  atomic { rl==0 -> rl=1 };
#endif
  if
  :: atomic { true -> goto over }                                             /* rolled back */
  :: atomic { true ->
       if
       :: on!=0 -> skip
       :: on==0 && row==0 -> row=p; on=p
#if defined(M_PUT_ANY)            /* whatever waits is enough */
       :: on==0 && row!=0 -> on=row
#elif defined(M_PUT_OVER)         /* the new body takes the place of the old one */
       :: on==0 && row!=0 -> row=p; on=p
#else
       :: on==0 && row!=0 && body[row]==body[p] -> on=row
       :: on==0 && row!=0 && body[row]!=body[p] -> goto over                  /* an error */
#endif
       fi;
       want[p]=on;
       if :: stock==none -> stock=reserved :: else fi }
  fi;
over:
  atomic { if :: rl==1 -> rl=0 :: else fi; on=0; p++; if :: p<3 -> goto next :: else -> p=0 fi }
}

proctype Payment() {
  byte left = PAYS; bool hit;
#ifdef M_CANCEL_LOOKED
  bool looked;
#endif
again:
#ifdef M_CANCEL_LOOKED            /* it looks first, and then deletes by key */
  atomic { looked=(row!=0 && own==0) };
#endif
  /* INSERT of a tombstone, which locks what it meets; DELETE where owner IS NULL */
  atomic { rl==0 -> rl=2;
#if defined(M_CANCEL_LOOKED)
    hit=(looked && row!=0); looked=0
#elif defined(M_CANCEL_BLIND)     /* the owner is not looked at */
    hit=(row!=0)
#else
    hit=(row!=0 && own==0)
#endif
  };
  if
  :: atomic { true -> goto over }                                             /* rolled back */
  :: atomic { true -> goto commit }                                           /* more time, and no payment */
  :: atomic { sl==0 ->
#ifdef M_CONFIRM_BLIND            /* it deducts whatever the reservation has become */
       sl=2
#else
       if :: stock==reserved || stock==deducted -> sl=2 :: else -> goto over fi
#endif
     }
     if
     :: atomic { true -> goto over }
     :: atomic { true -> if :: stock!=deducted -> took++ :: else fi;
                         stock=deducted; assert(back+took<=1) /* S */; goto commit }
     fi
  fi;
commit:
  atomic {
    if
    :: hit -> assert(sent[row]==0); intime[row]=1;                            /* N */
              if :: want[1]==row -> want[1]=0 :: else fi; if :: want[2]==row -> want[2]=0 :: else fi;
              gone()
#ifdef M_TOMB_STAYS               /* the tombstone is not deleted */
    :: row==0 && !hit -> row=TOMB; own=CANCEL; intime[TOMB]=1
#endif
    :: else
    fi };
over:
  atomic { hit=0; rl=0; sl=0; left--; if :: left>0 -> goto again :: else fi }
}

#define KILL :: atomic { faults>0 -> faults--; if :: rl==3+w -> rl=0 :: else fi; goto forget }

proctype Relay(byte w) {
  byte g; mtype got; bool sure;
end_idle:
  /* SELECT ... FOR UPDATE SKIP LOCKED, UPDATE, COMMIT */
#ifdef M_CLAIM_BLIND              /* what was read without a lock is sent */
  atomic { DUE -> g=row; sure=(own==0) };
  atomic { rl==0 -> if :: row!=0 -> own=NAME :: else fi };
#else
  atomic { DUE && rl==0 ->
    if :: LIVING -> faults-- :: else fi;
    g=row; sure=(own==0);
#if defined(M_PUBLISH_FIRST)      /* the claim is committed when it was sent */
    rl=3+w
#elif defined(M_DELETE_EARLY)     /* deleted with the claim */
    gone()
#else
    own=NAME
#endif
#ifdef M_SAME_NAME
    ; hands++
#endif
  };
#endif
publish:
  if
  KILL
  :: atomic { true -> arrive(g); got=confirmed }
  :: atomic { ret>0 -> ret--;
#ifdef M_NO_MANDATORY             /* what no queue took is confirmed */
              got=confirmed }
#else
              got=returned }
#endif
  :: atomic { faults>0 -> faults--; wire[g]++; got=unknown;
#ifndef M_AGAIN_SURE              /* a second try under the same claim forgets the first */
              sure=0
#endif
            }
     if
     :: atomic { true -> goto publish }
     :: atomic { true -> skip }
     fi
  fi;
#ifdef M_PUBLISH_FIRST
  if
  KILL
  :: atomic { true -> own=NAME; rl=0 }
  fi;
#endif
#ifdef M_NACK_SURE                /* a nack, or a lost connection, is a return */
  atomic { if :: got==unknown -> got=returned; sure=1 :: else fi };
#endif
  if
  KILL
  :: atomic { rl==0 ->
       if
#ifdef M_DELETE_BLIND             /* deleted by key */
       :: got==confirmed -> gone()
#else
       :: got==confirmed && own==NAME -> gone()
#endif
#ifdef M_RETURN_BLIND             /* written by key */
       :: got==returned && row!=0 ->
#else
       :: got==returned && own==NAME ->
#endif
#ifdef M_RETURN_SURE              /* a return says that nobody sent it, though another may have before */
          own=0;
#else
          if :: sure -> own=0 :: else fi;
#endif
          if :: parked=1 :: skip fi
       :: else                    /* somebody else's by now; or unknown: the owner stays */
       fi }
  fi;
forget:
  atomic {
#ifdef M_SAME_NAME
    hands--;
#endif
    if :: own==NAME && FREE -> own=GONE :: else fi;
    g=0; got=0; sure=0; goto end_idle }
}

proctype Consumer() {
end_consume:
  do
  :: atomic { (q[1] || q[2]) && applied!=0 -> q[1]=0; q[2]=0 }                /* copies, or letters */
#ifdef M_NO_LOG                   /* a copy is applied as if it were new */
  :: atomic { (q[1] || q[2]) && sl==0 ->
#else
  :: atomic { (q[1] || q[2]) && sl==0 && applied==0 ->
#endif
       if :: q[1] -> applied=body[1]; if :: q[1]=0 :: skip fi /* the ack is lost */
          :: q[2] -> applied=body[2]; if :: q[2]=0 :: skip fi
       fi;
       effects++; assert(effects<=1);                                         /* E */
       if
#ifdef M_RELEASE_BLIND            /* given back whatever the reservation has become */
       :: true ->
#else
       :: stock==reserved ->
#endif
          stock=released; back++; assert(back+took<=1);                       /* S */
#ifdef M_EVENT_APART              /* put in a transaction of its own */
          goto event
#else
          events++
#endif
#ifndef M_RELEASE_BLIND
       :: else
#endif
       fi }
  od;
event:
  if
  :: atomic { true -> events++; goto end_consume }
  :: atomic { faults>0 -> faults--; goto end_consume }
  fi
}

/* What is still on its way, and the person. */
proctype Env() {
end_env:
  do
  :: atomic { wire[1]>0 -> wire[1]--; if :: arrive(1) :: skip fi }
  :: atomic { wire[2]>0 -> wire[2]--; if :: arrive(2) :: skip fi }
  :: atomic { parked && rl==0 -> parked=0;
#ifdef M_RETRY_NULL               /* tried again as if nobody had sent it */
              own=0
#endif
            }
  od
}

#define SENT(p) (want[p]==0 || sent[want[p]]>0 && body[want[p]]==body[p])

proctype Rest() {
end_wait:
  timeout -> atomic {
    assert(row==0 && rl==0 && sl==0);                                         /* C */
    assert(SENT(1) && SENT(2));                                               /* L */
    assert(effects==(sent[1]+sent[2]>0));                                     /* E */
    assert(effects==0 || stock!=reserved);                                    /* S */
    assert(events==back) }                                                    /* V */
}

init {
  atomic {
    body[1]=1; if :: body[2]=1 :: body[2]=2 fi;
    run Producer(); run Payment(); run Consumer(); run Env(); run Rest();
    byte j=0;
    do :: j<NW -> run Relay(j); j++ :: else -> break od; j=0
  }
}
