/*
 * poison.pml - who pays for a crash? One process, NW lanes, NP poisonous identities (their handler kills the
 * process) and one innocent (its handler succeeds). All were delivered before, so all take the slow path.
 * After a crash every delivery comes back and every lease runs out before the process is up again.
 *
 * Default   as first designed: an expired lease is claimed like anything else. The innocent can be in another
 *           lane's hand at every crash and so spend all its attempts: counterexample.
 * -DALONE   the mended rule: an attempt that takes over an expired lease runs while this process holds no other
 *           claim. The innocent then never needs more than two attempts, however many poisons there are.
 */
#ifndef MAX
#define MAX 5
#endif
#ifndef NP
#define NP 1
#endif
#define NW 2
#define NID (NP+1)
#define Q NP                       /* the innocent */

byte st[NID] = 5, times[NID];      /* 5: no row, 0 processing, 1 success, 3 dead */
bool taken[NID], expired[NID];     /* unacked in a lane; lease over */
byte claims;                       /* claims held in this process */
bool alone;                        /* one of them took over an expired lease */
byte epoch;                        /* incarnation of the process */

#ifdef ALONE
#define MAY(i) (!alone && (!expired[i] || claims==0))
#else
#define MAY(i) true
#endif

inline crash() {                   /* the process dies: deliveries come back, leases run out */
  byte k=0;
  do :: k<NID -> taken[k]=0; if :: st[k]==0 -> expired[k]=1 :: else fi; k++ :: else -> break od; k=0;
  claims=0; alone=0; epoch++
}

proctype Lane() {
  byte i, e;
idle:
end_idle:
  atomic {
    if
    :: !taken[0] && st[0]!=1 && st[0]!=3 -> i=0
    :: !taken[NID-1] && st[NID-1]!=1 && st[NID-1]!=3 -> i=NID-1
#if NP>1
    :: !taken[1] && st[1]!=1 && st[1]!=3 -> i=1
#endif
    fi;
    taken[i]=1; e=epoch
  }
  if
  :: atomic { e!=epoch -> goto gone }
  :: atomic { e==epoch && times[i]>=MAX && expired[i] -> assert(i!=Q); st[i]=3; taken[i]=0; goto gone }  /* dead-lettered */
  :: atomic { e==epoch && times[i]<MAX && MAY(i) -> alone = (alone || expired[i]); claims++; expired[i]=0; st[i]=0; times[i]++;
#ifdef ALONE
       assert(i!=Q || times[Q]<=2)
#endif
     }
  fi;
  if
  :: atomic { e!=epoch -> goto gone }
  :: atomic { e==epoch && i!=Q -> crash(); goto gone }
  :: atomic { e==epoch && i==Q -> st[i]=1; taken[i]=0; claims--; alone=0 }
  fi;
gone:
  atomic { i=0; e=0; goto idle }
}
init { atomic { run Lane(); run Lane() } }
